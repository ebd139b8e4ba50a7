"""Two ladders from an unoptimized model to this product at its best, one real switch a rung, each rung in a process of its own.

rungs (which) → climb (in which order, by whom) → child (one rung, measured) → figures (samples to numbers) → show (table, plot).
"""
