"""How models write a tool call: readers, and grammars."""
