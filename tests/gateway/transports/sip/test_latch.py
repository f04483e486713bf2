from __future__ import annotations

from gateway.transports.sip.latch import Latch
from gateway.transports.sip.sdp import Address

ANNOUNCED, BEHIND_NAT, STRANGER = ("192.0.2.7", 4000), ("203.0.113.1", 61_000), ("198.51.100.66", 4000)


def latch(ip: str = ANNOUNCED[0], port: int = ANNOUNCED[1]) -> Latch:
    made = Latch()
    made.announce(Address(ip, port))
    return made


def test_until_something_comes_media_goes_where_the_description_says() -> None:
    assert latch().to == ANNOUNCED
    assert latch().source is None
    assert latch(ip="").to is None
    assert latch(port=0).to is None


def test_the_first_good_source_is_the_caller_and_stays_so() -> None:
    ours = latch()
    assert ours.admits(BEHIND_NAT)
    assert ours.take(BEHIND_NAT)
    assert not ours.take(BEHIND_NAT)
    assert ours.to == ours.source == BEHIND_NAT
    assert not ours.admits(STRANGER)
    assert not ours.admits((BEHIND_NAT[0], 61_001))
    assert ours.rejected == 2
    assert ours.to == BEHIND_NAT


def test_a_stranger_who_was_faster_gives_the_place_back() -> None:
    ours = latch()
    ours.take(STRANGER)
    assert ours.admits(ANNOUNCED)
    assert ours.take(ANNOUNCED)
    assert not ours.admits(STRANGER)
    assert ours.to == ANNOUNCED


def test_an_admitted_packet_that_was_no_good_latches_nothing() -> None:
    ours = latch()
    assert ours.admits(STRANGER)
    assert ours.admits(BEHIND_NAT)
    assert ours.to == ANNOUNCED


def test_only_another_address_begins_anew() -> None:
    ours = latch()
    ours.take(BEHIND_NAT)
    ours.announce(Address(*ANNOUNCED))
    assert ours.to == BEHIND_NAT, "a hold"
    ours.announce(Address("192.0.2.8", 5000))
    assert ours.to == ("192.0.2.8", 5000)
    assert ours.admits(STRANGER)
