"""Training TOMLs: lossless documents, typed edits, data binding, checks; and the strict YAML loader."""
