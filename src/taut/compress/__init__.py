"""What must run a model to quantize it: calibration, the artefact and its receipt, evaluation, export.

Knows models that are loaded; not how numbers are chosen (quant) nor what a server does.
"""
