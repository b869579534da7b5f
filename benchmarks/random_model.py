"""Writes a model of the Llama family with random weights, to measure costs at other sizes.

    python benchmarks/random_model.py FOLDER --hidden 960 --layers 32 --heads 15 --key-value-heads 5

Tokenizer and vocabulary are the embedded model's. Costs do not depend on the weights.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from retroformer.models.embedded import base_model_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--heads", type=int, required=True)
    parser.add_argument("--key-value-heads", type=int, required=True)
    chosen = parser.parse_args()
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    embedded = base_model_folder("embedded")
    config: Any = AutoConfig.from_pretrained(embedded)
    config.hidden_size, config.num_hidden_layers = chosen.hidden, chosen.layers
    config.num_attention_heads, config.num_key_value_heads = chosen.heads, chosen.key_value_heads
    config.head_dim, config.intermediate_size = chosen.hidden // chosen.heads, chosen.hidden * 8 // 3
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    shutil.copytree(embedded, chosen.folder, ignore=shutil.ignore_patterns("*.safetensors"))
    model.save_pretrained(chosen.folder)
    print(f"{chosen.folder}: {model.num_parameters() / 1e6:.0f} million parameters")


if __name__ == "__main__":
    main()
