"""What must run a model to judge or to change it: evaluation, calibration, receipts. Stands right of api: it works on loaded models."""
