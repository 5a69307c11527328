"""Data files of the package: prompt templates under ``templates/``."""
