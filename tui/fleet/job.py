"""What is to be launched, with what it takes from this machine: the project's files, the secrets."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent import wire

from . import launch_secrets, project, runs
from .project import Project, ProjectTooLarge

if TYPE_CHECKING:
    from profiles.schema import Profile
    from profiles.sections import NetworkSection


@dataclass(frozen=True)
class Job:
    """One launch, as far as it does not depend on hosts."""

    spec: wire.LaunchSpec
    network: NetworkSection
    project: Project | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


async def from_profile(
    profile: Profile,
    *,
    name: str | None = None,
    extra: Collection[str] = (),
    agree: Callable[[ProjectTooLarge], Awaitable[bool]] | None = None,
    dry_run: bool = False,
) -> Job:
    """The job that a profile describes, under a new name; see `runs.spec_from_profile`.

    Reads the project's files and the secrets. `agree` is asked whether a project over its limit is to be
    sent all the same. A `dry_run` needs no secrets. Raises UsageError for what cannot be read,
    ProjectTooLarge when nobody agrees.
    """
    name = name or profile.name
    spec = runs.spec_from_profile(profile, runs.new_run_id(name), name=name, extra=extra)
    sources = {} if dry_run else profile.secrets
    secrets = await asyncio.to_thread(launch_secrets.resolve, sources)
    sent = await _project(profile, agree)
    if sent is not None:
        spec = dataclasses.replace(spec, project=sent.tree)
    return Job(spec, profile.network, sent, secrets)


async def _project(
    profile: Profile, agree: Callable[[ProjectTooLarge], Awaitable[bool]] | None
) -> Project | None:
    folder = project.folder_of(profile)
    if folder is None or profile.code is None:
        return None
    try:
        return await asyncio.to_thread(project.collect, folder, profile.code.max_mb)
    except ProjectTooLarge as error:
        if agree is None or not await agree(error):
            raise
        return await asyncio.to_thread(project.collect, folder)
