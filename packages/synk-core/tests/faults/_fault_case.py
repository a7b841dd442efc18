"""One case, and what is to come of it."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

from _fault_client import Hosts
from _fault_tables import SLOW_S, Fault, Setting, State

from synk_testing import wait_gone

STALL_S = 0.3
PATIENT_S = 30.0
HASTY_S = 1.5
"""The runtimes' `stall_s`, and `timeout_s`: the latter where a worker is to be given up."""

NOTICE_S = 1.0
"""Until the master has learnt what happened. The contract is 0.1 s; the rest is for machines that
are busy with something else."""

CLOSE_S = 3.0
"""For `close()`, whose contract is 2 s."""

GONE_S = 4.0
"""Until the processes of a dead master are gone; the contract is 2 s."""

LONG_S = 20.0
"""A worker's sleep that something ends."""

SHORT_S = 0.7
"""A worker's sleep where no Ctrl-C reaches it."""


class Struck:
    """A case, run.

    Args:
        hosts: to take a program from.
        setting, state, fault: of the tables.

    Attributes:
        answer: what came of it.
    """

    def __init__(self, hosts: Hosts, setting: Setting, state: State, fault: Fault) -> None:
        self._hosts = hosts
        self._setting = setting
        self._state = state
        self._fault = fault
        hasty = fault.name == "SIGSTOP" and (state.is_order or state.name == "idle")
        self._options = {
            **setting.options,
            "stall_s": STALL_S,
            "timeout_s": HASTY_S if hasty else PATIENT_S,
        }
        self._ahead = 1 if hasty else 2
        self.answer: Dict[str, Any] = {}
        if fault.who == "parent":
            self._kill_master()
        else:
            self._run()

    def _case(self) -> Dict[str, Any]:
        state, fault = self._state, self._fault
        case = {
            "act": state.act,
            "place": state.place,
            "rank": self._setting.struck,
            "who": "master" if fault.who == "master" else "worker",
            "deed": fault.deed,
            "argument": float(fault.argument),
        }
        if fault.who == "ctrl-c":
            sleep_s = LONG_S if state.interrupts else SHORT_S
            case.update(strikes=int(fault.argument), argument=sleep_s)
        if fault.who in {"ctrl-c", "parent"} and state.name == "idle":
            case.update(still=True, deed=None)
        return case

    def _tell(self, host: Any) -> Dict[str, Any]:
        host.tell("run", case=self._case())
        begun: Dict[str, Any] = host.answer()
        return begun

    def _run(self) -> None:
        host = self._hosts.take(self._options, self._ahead)
        try:
            self._tell(host)
            self.answer = host.answer()
        except BaseException:
            self._hosts.replace(host, self._options)
            raise
        self._hosts.give_back(host, self._options, closed="left" in self.answer)
        left = self.answer.get("left", {})
        assert not any(left.values()), f"left behind: {left}"
        if self._fault.who == "worker" or self._state.name != "idle":
            assert self.answer["inflicted"], "the state was never entered"

    # What is to come of a fault in a worker.

    def expect_failure(self) -> None:
        """An exception of a worker's is raised in the master; all goes on as if nothing was."""
        error = self._error("WorkerFailed")
        assert error["rank"] == self._setting.struck
        assert error["others"] == {}
        assert f"in {self._fault.deed}" in error["traceback"]
        assert error["cause"] == self._kind_of_error()
        self._undone()
        self._in_time(NOTICE_S)

    def expect_death(self) -> None:
        """A worker that is killed ends the call at once, and the runtime; nothing has changed."""
        if self._state.name == "closing":
            self._closes()
            return
        error = self._error("WorkerDied")
        assert error["rank"] == self._setting.struck
        assert error["signal"] == self._fault.name
        assert self._state.doing in error["doing"]
        assert self._state.doing in error["message"]
        if self._setting.atomic:
            self._is(self.answer["master"], "before")
        self._in_time(NOTICE_S)

    def expect_stall(self) -> None:
        """A worker that is stopped is told, with its state; and given up when time is over."""
        if self._state.name == "closing":
            self._closes()
            return
        error = self._error("WorkerStalled")
        assert "TimeoutError" in error["family"]
        rank = self._setting.struck
        assert rank in error["ranks"]
        assert "stopped" in error["stacks"][str(rank)]
        assert "stopped" in error["message"]
        self._warned("stopped")
        if self._setting.atomic:
            self._is(self.answer["master"], "before")
        self._in_time(HASTY_S + NOTICE_S)

    def expect_lateness(self) -> None:
        """A worker that is late is told, with its stack; the result is right."""
        if self._state.name == "closing":
            self._closes()
            return
        assert self.answer["error"] is None, self.answer["error"]
        assert self.answer["right"]
        assert self.answer["again"]
        self._warned("in sleep")
        self._is(self.answer["ranks"], "after")
        self._in_time(SLOW_S + NOTICE_S)

    # What is to come of a fault in the master.

    def expect_own_failure(self) -> None:
        """What is raised in the master arrives as it is; all goes on as if nothing was."""
        self._error(self._kind_of_error())
        self._undone()
        self._in_time(NOTICE_S)

    def expect_interrupt(self) -> None:
        """Ctrl-C: KeyboardInterrupt; an order has happened on all ranks or on none. Where it is not
        atomic, what may differ is refused."""
        self._error("KeyboardInterrupt")
        if self._state.name == "closing":
            assert "left" in self.answer, "it is closed then"
            self._in_time(CLOSE_S)
            return
        if self._fault.name == "ctrl-c-twice":
            assert "left" in self.answer, "it is closed then"
            if self._setting.atomic:
                self._is(self.answer["master"], "before")
            self._in_time(CLOSE_S)
            return
        assert "left" not in self.answer, "it had time to listen"
        assert self.answer["again"]
        found = set(self.answer["ranks"].values())
        refused = not self._setting.atomic and self.answer["call_after"] == "ReplicasDiffer"
        assert refused or found <= {"same", "before"} or found <= {"same", "after"}, found
        self._in_time(NOTICE_S + (0 if self._state.interrupts else SHORT_S))

    def _kill_master(self) -> None:
        """A master that dies takes its workers and the watchdog along, and all memory."""
        host = self._hosts.take(self._options, self._ahead)
        try:
            begun = self._tell(host)
            self._await_mark(host)
            host.program.send_signal(int(self._fault.argument))
            began = time.monotonic()
            assert host.program.wait(GONE_S) == -int(self._fault.argument)
            wait_gone(host.workers, GONE_S)
            while left := host.family_left(begun["family"]):
                assert time.monotonic() - began < GONE_S, f"shared memory is left: {left}"
                time.sleep(0.005)
            files = os.listdir(host.temporary)
            assert not files, f"files are left: {files}"
        finally:
            self._hosts.replace(host, self._options)
        beside = self._hosts.beside(self._options)
        assert beside is not None
        beside.settle()
        beside.tell("ping")
        assert beside.answer()["well"], "another program was disturbed"

    def _await_mark(self, host: Any) -> None:
        def check() -> None:
            assert host.program.status is None, host.program.printed()

        host.mark.wait(PATIENT_S, check)
        time.sleep(0.1)

    # Parts of the above.

    def _error(self, name: str) -> Dict[str, Any]:
        error: Optional[Dict[str, Any]] = self.answer["error"]
        assert error is not None, f"nothing was raised, expected {name}"
        assert error["type"] == name, f"expected {name}, got {error['where']}"
        return error

    def _kind_of_error(self) -> str:
        return "Injected" if self._fault.deed == "fail" else "MemoryError"

    def _undone(self) -> None:
        assert "left" not in self.answer, "the runtime is open"
        if self._setting.atomic:
            self._is(self.answer["ranks"], "before")
        else:
            # The next call uses what this one updates.
            alike = self._state.name in {"gather", "distributing", "all_reduce", "broadcast"}
            assert self.answer["call_after"] == (alike or "ReplicasDiffer")
        assert self.answer["again"]

    def _is(self, found: Dict[str, str], expected: str) -> None:
        assert set(found.values()) <= {"same", expected}, found

    def _warned(self, text: str) -> None:
        told = [message for kind, message in self.answer["warnings"] if kind == "StallWarning"]
        assert any(
            f"rank {self._setting.struck} has been" in one and text in one for one in told
        ), told

    def _in_time(self, limit_s: float) -> None:
        assert self.answer["seconds"] < limit_s, f"{self.answer['seconds']:.3f} s"

    def _closes(self) -> None:
        assert self.answer["error"] is None, self.answer["error"]
        assert self.answer["right"]
        assert self.answer["call_s"] < CLOSE_S
