"""Ed25519 signatures of saved reports, beside the file: they tell which device made it, and that nobody changed it.

Any tool can check one:

    openssl pkeyutl -verify -pubin -inkey key.pub -rawin -in report.json -sigfile report.json.sig

Needs the extra `sign`.
"""

from __future__ import annotations

from typing import Any

SUFFIX = ".sig"  # 64 bytes beside the report
MAKE_KEY = "make one: openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out key.pub"


class SignatureTrouble(Exception):
    """A key that is none, or a signature that does not fit; the message is for a person."""


def sign(data: bytes, private_pem: bytes) -> bytes:
    """The signature of a file's bytes, 64 bytes.

    Args:
        data: the whole file.
        private_pem: an Ed25519 private key, PEM, PKCS#8, without a passphrase.

    Raises:
        SignatureTrouble: no such key, or the extra `sign` is not installed.
    """
    signature: bytes = _load("private", private_pem).sign(data)
    return signature


def verify(data: bytes, signature: bytes, public_pem: bytes) -> None:
    """Return when the signature is that key's, of these bytes.

    Args:
        data: the whole file.
        signature: 64 bytes.
        public_pem: an Ed25519 public key, PEM.

    Raises:
        SignatureTrouble: it is not, or there is no such key.
    """
    key = _load("public", public_pem)
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, data)
    except InvalidSignature as error:
        raise SignatureTrouble(
            "the signature does not fit: another key signed it, or the report was changed after it was signed"
        ) from error


def _load(kind: str, pem: bytes) -> Any:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
    except ImportError as error:
        raise SignatureTrouble(f"signatures need the extra 'sign': pip install 'edge-agent[sign]' ({error})") from error
    try:
        key = load_pem_private_key(pem, None) if kind == "private" else load_pem_public_key(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SignatureTrouble(f"not a {kind} key in PEM without a passphrase; {MAKE_KEY}") from error
    wanted: type = Ed25519PrivateKey if kind == "private" else Ed25519PublicKey
    if not isinstance(key, wanted):
        raise SignatureTrouble(f"{type(key).__name__.lstrip('_')}, not an Ed25519 key; {MAKE_KEY}")
    return key
