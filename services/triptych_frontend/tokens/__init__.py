"""Token ids and text: the tokenizer, the text of single tokens, incremental detokenization."""
