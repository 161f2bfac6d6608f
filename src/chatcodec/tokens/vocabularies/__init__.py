"""Tokenizers, a module a kind of file or object that they come from; `finding` tells which is what."""
