"""What a study's log becomes for other programs: an Optuna study, MLflow runs, TensorBoard events."""
