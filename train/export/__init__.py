"""Full weights of a trained stage, for transformers (`merge`) and for llama.cpp (`gguf_file`)."""
