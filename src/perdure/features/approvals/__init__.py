"""Approvals: questions of runs to people, and their decisions."""

from perdure.core.push.effect import ApprovalMoved, AskedPeople
from perdure.engine.registry import Extension
from perdure.features.approvals.operations import (
    BY_RUN,
    KeepApproval,
    MoveApproval,
    approval_records,
)
from perdure.features.approvals.routes import Approvals
from perdure.features.feature import Feature, Kernel, Parts
from perdure.protocols.durablex.routes import FULL, READER
from perdure.web.routing import Route


def _build(kernel: Kernel, settings: object) -> Parts:
    surface = kernel.push_surface
    approvals = Approvals(kernel.engine, surface)
    return Parts(
        routes=[
            Route("GET", "/approvals", READER, surface, approvals.find),
            Route("GET", "/approvals/{approval_id}", READER, surface, approvals.show),
            Route("POST", "/approvals/{approval_id}/decision", FULL, surface, approvals.decide),
        ]
    )


FEATURE: Feature[object] = Feature(
    extension=Extension(
        name="approvals",
        follow_ups={AskedPeople: KeepApproval, ApprovalMoved: MoveApproval},
        run_records=(BY_RUN.name,),
        linked_records=(approval_records,),
    ),
    build=_build,
)
