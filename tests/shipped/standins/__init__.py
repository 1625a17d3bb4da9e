"""On the path of a program: what needs a GPU or a decoder, in a few lines; nothing of it trains."""
