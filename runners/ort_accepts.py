"""Which .onnx files ONNX Runtime takes, by IR version and operator sets. Pure.

The limits are those of the newest release known here, as data; an older release reads less and says so itself at load.
"""

from __future__ import annotations

from runners.contract import Verdict
from runners.model import ModelInfo

NEWEST = "1.32"
IR_NEWEST = 14
OPSETS = {"": (7, 28), "ai.onnx.ml": (1, 5)}  # domain -> oldest that is supported, newest
BUILT_IN = ("com.microsoft", "com.ms.", "ai.onnx.", "org.pytorch.aten")
# Exporters keep functions, not custom operators, in domains of this name: their bodies are in the file itself.
FUNCTION_DOMAINS = ("pkg.",)

Objection = tuple[str, str]  # reason, remedy


def verdict(model: ModelInfo) -> Verdict:
    """Whether ONNX Runtime takes the model, device apart; every objection is told, each with its own remedy."""
    if model.format != "onnx":
        kind = f"a {model.format} file" if model.format else "of an unknown format"
        return Verdict(accepted=False, reason=f"ONNX Runtime runs .onnx files; this is {kind}")
    told = [*_ir_objections(model), *_opset_objections(model)]
    return Verdict(
        accepted=not told,
        reason="; ".join(reason for reason, _ in told),
        remedy="; ".join(dict.fromkeys(remedy for _, remedy in told)),
    )


def _ir_objections(model: ModelInfo) -> list[Objection]:
    if model.format_version <= IR_NEWEST:
        return []
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opsets.items())
    return [
        (
            f"ONNX IR version {model.format_version} is too new: ONNX Runtime {NEWEST} reads up to {IR_NEWEST} "
            f"(this is not the operator set, which is {opsets or 'not stated'})",
            "upgrade onnxruntime, or write the file again with a lower ir_version",
        )
    ]


def _opset_objections(model: ModelInfo) -> list[Objection]:
    found = []
    for domain, version in model.opsets.items():
        plain = "" if domain == "ai.onnx" else domain
        if plain in OPSETS:
            found.extend(_known_objections(plain, version))
        elif not plain.startswith((*BUILT_IN, *FUNCTION_DOMAINS)):
            found.append(
                (
                    f"it needs operators of the custom domain {plain} {version}, which ONNX Runtime does not have",
                    f"export the model without {plain}: its custom-op library is not loaded here",
                )
            )
    return found


def _known_objections(domain: str, version: int) -> list[Objection]:
    oldest, newest = OPSETS[domain]
    name = domain or "ai.onnx"
    if version > newest:
        return [
            (
                f"operator set {name} {version} is too new: ONNX Runtime {NEWEST} has up to {newest}",
                f"upgrade onnxruntime, or export the model with {name} {newest} or older",
            )
        ]
    if version < oldest:
        return [
            (
                f"operator set {name} {version} is too old: ONNX Runtime supports {oldest} and newer",
                f"convert the model to {name} {oldest} or newer, e.g. by onnx.version_converter",
            )
        ]
    return []
