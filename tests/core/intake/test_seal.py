"""Secrets at rest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.intake.keyring import CannotOpen, Keyring

KEY, OTHER = "k" * 32, "an older key of more than 32 characters"
NONCE = bytes(range(12))


@given(st.text(), st.text(), st.binary(min_size=12, max_size=12))
def test_what_is_sealed_opens_for_its_owner(secret: str, owner: str, nonce: bytes) -> None:
    sealed = Keyring([KEY]).seal(secret, owner=owner, nonce=nonce)
    assert Keyring([OTHER, KEY]).open(sealed, owner=owner) == secret
    with pytest.raises(CannotOpen):
        Keyring([KEY]).open(sealed, owner=owner + "x")
    with pytest.raises(CannotOpen):
        Keyring([OTHER]).open(sealed, owner=owner)


def test_nothing_of_the_secret_shows() -> None:
    sealed = Keyring([KEY]).seal("whsec_plain", owner="a", nonce=NONCE)
    assert b"whsec" not in sealed
    assert Keyring([KEY]).is_current(sealed)
    assert not Keyring([OTHER, KEY]).is_current(sealed)


def test_whatever_is_broken_is_refused() -> None:
    keys = Keyring([KEY])
    sealed = keys.seal("secret", owner="a", nonce=NONCE)
    for place in range(len(sealed)):
        broken = bytearray(sealed)
        broken[place] ^= 1
        with pytest.raises(CannotOpen):
            keys.open(bytes(broken), owner="a")
    for length in range(len(sealed)):
        with pytest.raises(CannotOpen):
            keys.open(sealed[:length], owner="a")


def test_a_short_key_is_none() -> None:
    with pytest.raises(ValueError, match="at least 32 characters"):
        Keyring(["short"])
    with pytest.raises(ValueError, match="no master key"):
        Keyring([])
