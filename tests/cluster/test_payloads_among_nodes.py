"""External payloads on several nodes: what a run names is there, whoever forgets at that moment."""

import asyncio
import hashlib

import pytest

from perdure.core import limits
from perdure.core.external import Reference, reference_to
from perdure.core.rejection import ExternalPayloadExpired, ExternalPayloadNotFound
from perdure.engine.payloads import PAYLOADS, ExpirePayload, NamePayloads, UploadPayload
from perdure.store.interface import PayloadKey
from tests.cluster.among import Node, several
from tests.engine.ending import must_end
from tests.engine.engine_harness import NAMESPACE, start

COUNT = 24


def reference_of(data: bytes) -> Reference:
    return reference_to(NAMESPACE, "avro", len(data), hashlib.sha256(data).hexdigest())


async def upload(node: Node, data: bytes) -> Reference:
    reference = reference_of(data)
    await node.engine.submit(UploadPayload(NAMESPACE, reference, data))
    return reference


async def name(node: Node, reference: Reference, workflow_id: str) -> bool:
    """Whether a run that names the payload was started."""
    operation = NamePayloads(start(workflow_id), NAMESPACE, [reference])
    try:
        await node.engine.submit(operation)
    except (ExternalPayloadExpired, ExternalPayloadNotFound):
        return False
    return True


async def forget(node: Node, reference: Reference) -> None:
    key = PAYLOADS.key(NAMESPACE, reference.reference_id)
    for _ in range(4):
        assert await node.engine.submit(ExpirePayload(key)) is True


def test_a_payload_that_a_run_names_outlives_every_race(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So short that some are named in time and some are not, whatever this machine does.
    monkeypatch.setattr(limits, "LOOSE_PAYLOAD_TIMEOUT", limits.SECOND // 50)
    kept = []

    async def one_race(one: Node, two: Node, number: int) -> None:
        data = b"payload %d" % number
        reference = await upload(one, data)
        started, _, _ = await asyncio.gather(
            name(two, reference, f"order-{number}"), forget(one, reference), forget(two, reference)
        )
        if started:
            kept.append((reference, data))

    async def story() -> None:
        async with several(migrated_url) as (one, two):
            for number in range(COUNT):
                await one_race(one, two, number)
            monkeypatch.setattr(limits, "LOOSE_PAYLOAD_TIMEOUT", 3_600 * limits.SECOND)
            in_time = await upload(one, b"in time")
            assert await name(two, in_time, "in-time")
            kept.append((in_time, b"in time"))
            for reference, data in kept:
                await forget(one, reference)
                key = PayloadKey(NAMESPACE, reference.reference_id)
                assert await two.engine.store.read_payload(key) == data

    with must_end(seconds=180):
        asyncio.run(story())


def test_an_upload_and_its_use_need_not_meet_on_one_node(migrated_url: str) -> None:
    async def story() -> None:
        async with several(migrated_url) as (one, two):
            references = [await upload(one, b"p%d" % number) for number in range(3)]
            again = await asyncio.gather(*(upload(two, b"p%d" % number) for number in range(3)))
            assert list(again) == references
            operation = NamePayloads(start("order"), NAMESPACE, references)
            await two.engine.submit(operation)
            for reference in references:
                stored = await PAYLOADS.read(one.engine.store, NAMESPACE, reference.reference_id)
                assert stored is not None
                assert stored.until is None

    with must_end(seconds=180):
        asyncio.run(story())


def test_the_same_bytes_may_come_to_two_nodes_at_once(migrated_url: str) -> None:
    async def story() -> None:
        async with several(migrated_url) as (one, two):
            for number in range(8):
                data = b"twice %d" % number
                first, second = await asyncio.gather(upload(one, data), upload(two, data))
                assert first == second
                key = PayloadKey(NAMESPACE, first.reference_id)
                assert await one.engine.store.read_payload(key) == data

    with must_end(seconds=180):
        asyncio.run(story())
