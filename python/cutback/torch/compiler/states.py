"""The states of a compiled model, and the table of transitions between them.

A model under one budget is planned graph by graph: PyTorch compiles the graphs one after another,
and only running them shows what they share. :class:`compiler.several.ModelPartitioner` is in one of
these states at any time. When it observes an event, it looks up (state, event) here and runs the
action. It is in the next state once the action has ended without an error. A pair that is not in
the table cannot occur.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """The stage of a model's planning."""

    SEPARATE = "separate"
    """There is no budget in bytes or shares: each graph has its own plan."""
    GIVEN = "given"
    """Plans come from a file."""
    NEW = "new"
    """No graph has been planned."""
    SINGLE = "single"
    """One graph has a plan, under the whole budget."""
    UNMET = "unmet"
    """The only graph cannot meet its share alone. Several calls of it may meet it together; if the
    first backward shows that there was only one call, the step fails or warns."""
    GRAPHS_DUE = "graphs due"
    """Some compiled graphs are not covered by a plan. A plan over all graphs is due at the next
    call."""
    CALLS_DUE = "calls due"
    """Calls that were pending together exceed the budget. Plans over them are due."""
    JOINED = "joined"
    """One plan over all graphs is in force."""
    SHARED = "shared"
    """Each graph has a plan such that calls that are pending together meet the budget."""
    GIVEN_UP = "given up"
    """New graphs appeared after plans were made again for the last time: from now on each new graph
    gets its smallest plan."""


class Event(Enum):
    """An event in the life of a model."""

    GRAPH = "graph"
    """A graph whose budget is not shared is compiled."""
    GRAPH_FITS = "graph fits"
    """The only graph is compiled, and a plan meets the whole budget."""
    GRAPH_PUT_OFF = "graph put off"
    """The only graph is compiled in the first step, and no plan meets the share, which is relative
    to this graph alone."""
    GRAPH_OVER = "graph over"
    """The only graph is compiled, and no plan meets the budget."""
    GRAPH_NEW = "graph new"
    """A graph that no plan covers is compiled, and the model has other graphs."""
    GRAPH_LATE = "graph late"
    """Such a graph is compiled after plans were made again the maximum number of times."""
    STEP_KEEPS = "step keeps"
    """The step ran only one graph, once. The graph exceeds the budget and keeps its plan."""
    STEP_SAVES = "step saves"
    """The step ran only one graph, once, and everything is saved (``on_infeasible="warn"``)."""
    CALLS_OVER = "calls over"
    """Calls that were pending together exceed the budget, and plans may be made again."""
    PATH_OVER = "path over"
    """A step ran graphs that no plan covers together; they exceed the budget, and plans may be made
    again."""
    REPLAN_GRAPHS = "replan graphs"
    """A call begins, and one plan over the graphs must be made."""
    REPLAN_CALLS = "replan calls"
    """A call begins, and plans over pending calls must be made."""
    SIZE_OUTGROWN = "size outgrown"
    """A call begins, and sizes exceed the planned ones."""
    SCRATCH_OVER = "scratch over"
    """In measured steps, scratch takes the step over the budget, and plans may be made again."""
    CODE_GONE = "code gone"
    """PyTorch has dropped the compiled code (``torch._dynamo.reset()``)."""


class Action(Enum):
    """The action of a transition."""

    PLAN_ALONE = "plan_alone"
    LOOK_UP = "look_up"
    KEEP_PLAN = "keep_plan"
    PUT_OFF = "put_off"
    SETTLE = "settle"
    PLAN_AS_MIN = "plan_as_min"
    PLAN_LATE = "plan_late"
    SAY_UNMET = "say_unmet"
    SHARE = "share"
    ADD_PATH = "add_path"
    COUNT_SCRATCH = "count_scratch"
    PLAN_GRAPHS = "plan_graphs"
    PLAN_CALLS = "plan_calls"
    START_AGAIN = "start_again"
    START_FOR_SIZES = "start_for_sizes"
    FORGET_FRAMES = "forget_frames"


_S, _E, _A = State, Event, Action

TABLE: dict[tuple[State, Event], tuple[State, Action]] = {
    # graphs with separate plans
    (_S.SEPARATE, _E.GRAPH): (_S.SEPARATE, _A.PLAN_ALONE),
    (_S.GIVEN, _E.GRAPH): (_S.GIVEN, _A.LOOK_UP),
    # the only graph
    (_S.NEW, _E.GRAPH_FITS): (_S.SINGLE, _A.KEEP_PLAN),
    (_S.SINGLE, _E.GRAPH_FITS): (_S.SINGLE, _A.KEEP_PLAN),
    (_S.CALLS_DUE, _E.GRAPH_FITS): (_S.CALLS_DUE, _A.KEEP_PLAN),
    (_S.UNMET, _E.GRAPH_FITS): (_S.SINGLE, _A.KEEP_PLAN),
    (_S.NEW, _E.GRAPH_PUT_OFF): (_S.UNMET, _A.PUT_OFF),
    (_S.UNMET, _E.GRAPH_PUT_OFF): (_S.UNMET, _A.PUT_OFF),
    (_S.UNMET, _E.STEP_KEEPS): (_S.SINGLE, _A.SAY_UNMET),
    (_S.UNMET, _E.STEP_SAVES): (_S.GRAPHS_DUE, _A.SAY_UNMET),
    (_S.NEW, _E.GRAPH_OVER): (_S.SINGLE, _A.SETTLE),
    (_S.SINGLE, _E.GRAPH_OVER): (_S.SINGLE, _A.SETTLE),
    (_S.CALLS_DUE, _E.GRAPH_OVER): (_S.CALLS_DUE, _A.SETTLE),
    # one more graph that is a whole step
    (_S.JOINED, _E.GRAPH_FITS): (_S.JOINED, _A.KEEP_PLAN),
    (_S.JOINED, _E.GRAPH_OVER): (_S.JOINED, _A.SETTLE),
    # steps with several graphs
    (_S.NEW, _E.GRAPH_NEW): (_S.GRAPHS_DUE, _A.PLAN_AS_MIN),
    (_S.SINGLE, _E.GRAPH_NEW): (_S.GRAPHS_DUE, _A.PLAN_AS_MIN),
    (_S.UNMET, _E.GRAPH_NEW): (_S.GRAPHS_DUE, _A.PLAN_AS_MIN),
    (_S.GRAPHS_DUE, _E.GRAPH_NEW): (_S.GRAPHS_DUE, _A.PLAN_AS_MIN),
    (_S.CALLS_DUE, _E.GRAPH_NEW): (_S.CALLS_DUE, _A.PLAN_AS_MIN),
    (_S.JOINED, _E.GRAPH_NEW): (_S.GRAPHS_DUE, _A.PLAN_AS_MIN),
    (_S.SHARED, _E.GRAPH_NEW): (_S.GRAPHS_DUE, _A.PLAN_AS_MIN),
    (_S.JOINED, _E.GRAPH_LATE): (_S.GIVEN_UP, _A.PLAN_LATE),
    (_S.SHARED, _E.GRAPH_LATE): (_S.GIVEN_UP, _A.PLAN_LATE),
    (_S.GIVEN_UP, _E.GRAPH_LATE): (_S.GIVEN_UP, _A.PLAN_LATE),
    # calls that are pending together
    (_S.SINGLE, _E.CALLS_OVER): (_S.CALLS_DUE, _A.SHARE),
    (_S.UNMET, _E.CALLS_OVER): (_S.CALLS_DUE, _A.SHARE),
    (_S.GRAPHS_DUE, _E.CALLS_OVER): (_S.CALLS_DUE, _A.SHARE),
    (_S.CALLS_DUE, _E.CALLS_OVER): (_S.CALLS_DUE, _A.SHARE),
    (_S.JOINED, _E.CALLS_OVER): (_S.CALLS_DUE, _A.SHARE),
    (_S.SHARED, _E.CALLS_OVER): (_S.CALLS_DUE, _A.SHARE),
    # steps on paths that are not planned
    (_S.JOINED, _E.PATH_OVER): (_S.GRAPHS_DUE, _A.ADD_PATH),
    (_S.SHARED, _E.PATH_OVER): (_S.GRAPHS_DUE, _A.ADD_PATH),
    # scratch that plans do not count yet
    (_S.SINGLE, _E.SCRATCH_OVER): (_S.GRAPHS_DUE, _A.COUNT_SCRATCH),
    (_S.JOINED, _E.SCRATCH_OVER): (_S.GRAPHS_DUE, _A.COUNT_SCRATCH),
    # plans that are made again before a call
    (_S.GRAPHS_DUE, _E.REPLAN_GRAPHS): (_S.JOINED, _A.PLAN_GRAPHS),
    (_S.GRAPHS_DUE, _E.REPLAN_CALLS): (_S.SHARED, _A.PLAN_CALLS),
    (_S.CALLS_DUE, _E.REPLAN_CALLS): (_S.SHARED, _A.PLAN_CALLS),
    # larger sizes than planned
    (_S.SINGLE, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    (_S.UNMET, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    (_S.GRAPHS_DUE, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    (_S.CALLS_DUE, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    (_S.JOINED, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    (_S.SHARED, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    (_S.GIVEN_UP, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    # PyTorch has dropped compiled code; plans over several graphs stay
    (_S.SEPARATE, _E.CODE_GONE): (_S.SEPARATE, _A.START_AGAIN),
    (_S.GIVEN, _E.CODE_GONE): (_S.GIVEN, _A.START_AGAIN),
    (_S.SINGLE, _E.CODE_GONE): (_S.NEW, _A.START_AGAIN),
    (_S.UNMET, _E.CODE_GONE): (_S.NEW, _A.START_AGAIN),
    (_S.GRAPHS_DUE, _E.CODE_GONE): (_S.GRAPHS_DUE, _A.FORGET_FRAMES),
    (_S.CALLS_DUE, _E.CODE_GONE): (_S.CALLS_DUE, _A.FORGET_FRAMES),
    (_S.JOINED, _E.CODE_GONE): (_S.JOINED, _A.FORGET_FRAMES),
    (_S.SHARED, _E.CODE_GONE): (_S.SHARED, _A.FORGET_FRAMES),
    (_S.GIVEN_UP, _E.CODE_GONE): (_S.GIVEN_UP, _A.FORGET_FRAMES),
}

DUE = (State.GRAPHS_DUE, State.CALLS_DUE)
"""States in which plans must be made again before the next call."""

NOT_SHARED = (State.SEPARATE, State.GIVEN)
"""States in which graphs do not share one budget."""

COUNTS_SCRATCH = (State.SINGLE, State.JOINED)
"""States in which one plan is in force, so that scratch can be counted in it."""

WHOLE = (State.JOINED, State.SHARED)
"""States in which plans cover whole steps."""

BEHIND = (*DUE, State.GIVEN_UP)
"""States in which some graphs run without a plan in force."""

FIRST_GRAPH = (State.NEW, State.SINGLE, State.UNMET, State.CALLS_DUE)
"""States in which a graph may get the whole budget, if it is the only one."""


class TransitionError(RuntimeError):
    """Raised for an event that cannot occur in a state: a bug in this package."""


def transition(state: State, event: Event) -> tuple[State, Action]:
    """Returns the next state and the action of the transition. Raises TransitionError if the table
    has no such row.
    """
    try:
        return TABLE[state, event]
    except KeyError:
        raise TransitionError(f"event {event.value!r} in state {state.value!r}") from None
