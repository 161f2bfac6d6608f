"""Our own templates of the five formats (`<name>.jinja`), their special tokens and stops (`formats.json`)."""
