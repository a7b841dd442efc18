"""Mutual proof that two ranks know the group's token, without sending it."""

from __future__ import annotations

import hashlib
import hmac
import secrets

NONCE_BYTES = 32
PROOF_BYTES = 32
COOKIE_BYTES = 16
MIN_TOKEN = 16


def new_nonce() -> bytes:
    """Return fresh random bytes, to be used in one handshake only."""
    return secrets.token_bytes(NONCE_BYTES)


def token_key(token: str | bytes) -> bytes:
    """Return the key of a token; ValueError if the token is too short to be a secret."""
    raw = token.encode() if isinstance(token, str) else bytes(token)
    if len(raw) < MIN_TOKEN:
        raise ValueError(
            f"token must hold at least {MIN_TOKEN} characters that nobody can guess, got "
            f"{len(raw)}; make one with secrets.token_hex() and pass it by environment"
        )
    return hashlib.sha256(b"synk-comm token" + raw).digest()


def derived(key: bytes, purpose: str) -> bytes:
    """Return a key for one purpose, from which neither ``key`` nor other purposes' keys follow."""
    return hmac.new(key, b"derived|" + purpose.encode(), "sha256").digest()


class Seal:
    """Marks the messages of one direction of one connection.

    The key follows from both ends' nonces and the mark from the number of the message as well:
    what was recorded cannot be played again, neither later in this connection nor in another.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def mark(self, content: bytes) -> bytes:
        """Return the mark of the next message that is sent."""
        mark = hmac.new(self._key, self._number.to_bytes(8, "big") + content, "sha256").digest()
        self._number += 1
        return mark

    def check(self, mark: bytes, content: bytes) -> bool:
        """Return whether this is the mark of the next message that is received."""
        return hmac.compare_digest(mark, self.mark(content))


class Handshake:
    """One rank's side of the proof between two ranks.

    Both send a nonce, then a proof over both nonces; the proof names its maker, so that an
    attacker cannot send a rank its own proof back.
    """

    def __init__(self, key: bytes, own_rank: int, peer_rank: int) -> None:
        self._key = key
        self._own = own_rank
        self._peer = peer_rank
        self.nonce = new_nonce()
        self._nonces = b""

    def meet(self, peer_nonce: bytes) -> None:
        """Take the peer's nonce."""
        pair = (self.nonce, peer_nonce)
        self._nonces = b"".join(pair if self._own < self._peer else reversed(pair))

    def proof(self) -> bytes:
        """Return the proof to be sent."""
        return self._digest(b"proof", self._own)

    def check(self, proof: bytes) -> bool:
        """Return whether the peer's proof is right."""
        return hmac.compare_digest(proof, self._digest(b"proof", self._peer))

    def cookie(self, sender: int) -> bytes:
        """Return what marks each later message of a sender as coming from this handshake."""
        return self._digest(b"cookie", sender)[:COOKIE_BYTES]

    def seal(self, sender: int) -> Seal:
        """Return what marks the messages of a sender on a connection of its own."""
        return Seal(self._digest(b"seal", sender))

    def _digest(self, purpose: bytes, maker: int) -> bytes:
        ranks = f"|{maker}|{min(self._own, self._peer)}|{max(self._own, self._peer)}|".encode()
        return hmac.new(self._key, purpose + ranks + self._nonces, "sha256").digest()
