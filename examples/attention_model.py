"""
Attention in a language model
=============================

Error of each layer, change of the output, and time, with our attention in a model.

``python attention_model.py --model FOLDER_OR_FILE.gguf --tokens 2048 --eps 0.1`` takes any causal
model of transformers. Without one, a tiny random model shows how it works: its heads are sampled,
as the text is long, but its predictions are noise.
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import transformers

import approxkmv as akmv
from approxkmv import datasets, huggingface
from approxkmv.torch import scaled_dot_product_attention

parser = argparse.ArgumentParser()
parser.add_argument("--model", type=Path)
parser.add_argument("--tokens", type=int, default=8192)
parser.add_argument("--eps", type=float, default=0.1)
args = parser.parse_args()

if args.model is None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=args.tokens,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    text = datasets.english_prose().encode()[: args.tokens]
    tokens = torch.tensor([list(text)])
else:
    is_file = args.model.suffix == ".gguf"
    where = args.model.parent if is_file else args.model
    options: dict[str, object] = {"gguf_file": args.model.name} if is_file else {}
    options["trust_remote_code"] = False  # nor is anybody asked
    tokenizer = transformers.AutoTokenizer.from_pretrained(where, **options)
    options |= {"dtype": torch.float32, "use_safetensors": True}
    model = transformers.AutoModelForCausalLM.from_pretrained(where, **options).eval()
    text = datasets.english_prose()[: 20 * args.tokens]
    tokens = tokenizer(text, return_tensors="pt").input_ids[:, : args.tokens]

layers: list[dict[str, float]] = []


def recorded(module, query, key, value, attention_mask, scaling=None, **others):  # type: ignore[no-untyped-def]
    """Attend with our function and keep the largest error of the layer's heads over |V|_F."""
    causal = {"scale": scaling, "is_causal": attention_mask is None, "enable_gqa": True}
    exact = scaled_dot_product_attention(
        query, key, value, attention_mask, method="exact", **causal
    )
    output, info = akmv.attention(
        query, key, value, attn_mask=attention_mask, eps=args.eps, rng=0, return_info=True, **causal
    )
    lengths = value.norm(dim=(-2, -1)).repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    error = ((output - exact).norm(dim=(-2, -1)) / lengths).max()
    sampled = sum(head.method == "sampled" for head in info.heads) / len(info.heads)
    layers.append(
        {"error": float(error), "sampled": sampled, "pairs": info.pairs / info.pairs_exact}
    )
    return output.transpose(1, 2).contiguous(), None


def run(implementation: str) -> tuple[torch.Tensor, float]:
    """Logits and time with one way to attend."""
    model.set_attn_implementation(implementation)
    with torch.inference_mode():
        start = time.perf_counter()
        logits = model(tokens).logits[0].double()
        return logits, time.perf_counter() - start


def perplexity(logits: torch.Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits[:-1], tokens[0, 1:]).exp())


run("sdpa")  # once to warm up
wanted, torch_time = run("sdpa")
found, our_time = run(huggingface.register(eps=args.eps))
huggingface.register("approxkmv-recorded")  # the masks; then our own function under that name
transformers.AttentionInterface.register("approxkmv-recorded", recorded)
run("approxkmv-recorded")

print(f"{tokens.shape[1]} tokens, eps = {args.eps:g}")
print("layer  error / |V|  sampled heads  pairs computed")
for number, layer in enumerate(layers):
    print(f"{number:5}  {layer['error']:11.2g}  {layer['sampled']:13.0%}  {layer['pairs']:14.1%}")
change = float((found - wanted).norm() / wanted.norm())
print(f"logits changed by {change:.2g} of their length")
print(f"perplexity        {perplexity(wanted):.3f} with SDPA, {perplexity(found):.3f} with ours")
print(f"whole model       {torch_time:.3g} s with SDPA, {our_time:.3g} s with ours")
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.bar(range(len(layers)), [layer["error"] for layer in layers])
ax.axhline(args.eps, color="0.6", ls="--", label="allowed")
ax.set(xlabel="layer", ylabel="error / |V|")
ax.legend()
plt.show()
assert all(layer["error"] <= args.eps for layer in layers)
