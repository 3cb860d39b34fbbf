"""Mailbox of each event loop, through which native clients complete futures."""

from __future__ import annotations

import asyncio
import weakref

from hoplite import _native

_mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _native.Mailbox] = (
    weakref.WeakKeyDictionary()
)


def of_running_loop() -> tuple[_native.Mailbox, asyncio.AbstractEventLoop]:
    loop = asyncio.get_running_loop()
    mailbox = _mailboxes.get(loop)
    if mailbox is None:
        _forget_closed()
        mailbox = _native.Mailbox()
        loop.add_reader(mailbox.fileno(), mailbox.deliver)
        _mailboxes[loop] = mailbox
    return mailbox, loop


def _forget_closed() -> None:
    """Drops the mailboxes of closed loops, which their pending calls would keep alive."""
    for ref in _mailboxes.keyrefs():
        loop = ref()
        if loop is not None and loop.is_closed():
            _mailboxes.pop(loop, None)
