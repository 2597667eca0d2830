//! In-flight limit of a branch as a pure state machine, without clock, lock or thread.
//!
//! A call needs a permit. Permits belong to a generation of the branch's mount: a branch that is mounted again has a
//! full set at once, whatever is stuck in the old mount. Calls beyond the limit queue. A returned permit goes to the
//! first of them, so no call overtakes and none polls. A call that was given up keeps its permit until it returns.
//!
//! `C` describes a caller. Times are milliseconds of the branch's clock (`clock.rs`).

use std::collections::VecDeque;

use super::inflight_limit::CallKind;

/// Permit of a call inside. Never reused: an earlier call's permit cannot match a later call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Permit {
    slot: usize,
    number: u64,
}

/// Answer to a caller in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueAnswer {
    /// The call may enter.
    Enter(Permit),
    /// The branch is not expected to answer.
    Refused,
}

/// Reason why a call cannot enter at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// All permits are taken.
    Full,
    /// All permits are held by calls that were given up, or the call is optional and the branch may hang.
    Hopeless,
}

/// Calls inside a branch, and callers that wait for a permit.
#[derive(Debug)]
pub(super) struct Inflight<C> {
    limit: usize,
    /// Mount generations, the present one last. Earlier ones are kept while calls are inside them.
    generations: Vec<Generation>,
    calls: Vec<Option<Call<C>>>,
    vacant: Vec<usize>,
    queue: VecDeque<Waiting<C>>,
    /// Number of calls that ever entered.
    entered: u64,
    /// Time of the last successful probe.
    answered: u64,
}

/// Permits of one mount of the branch.
#[derive(Clone, Copy, Debug)]
struct Generation {
    number: u32,
    since: u64,
    held: usize,
    /// Permits held by calls that were given up.
    lost: usize,
    /// Time when a permit last became free.
    moved: u64,
}

#[derive(Debug)]
struct Call<C> {
    number: u64,
    generation: u32,
    began: u64,
    kind: CallKind,
    is_lost: bool,
    caller: C,
}

#[derive(Debug)]
struct Waiting<C> {
    generation: u32,
    came: u64,
    kind: CallKind,
    caller: C,
}

/// Result of a check of the calls inside.
#[derive(Debug)]
pub(super) struct Overdue<C> {
    pub(super) inside: usize,
    /// A short call in the present mount has exceeded its time limit.
    pub(super) overstayed: bool,
    /// A long call has, and the branch has not answered a probe since.
    pub(super) doubtful: bool,
    /// Calls to give up.
    pub(super) calls: Vec<(Permit, C)>,
}

impl<C> Inflight<C> {
    /// State for a branch with `limit` permits.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            generations: vec![Generation { number: 0, since: 0, held: 0, lost: 0, moved: 0 }],
            calls: Vec::new(),
            vacant: Vec::new(),
            queue: VecDeque::new(),
            entered: 0,
            answered: 0,
        }
    }

    /// Sets the number of permits.
    pub(super) fn set_limit(&mut self, limit: usize, now: u64, tell: impl FnMut(&C, QueueAnswer)) {
        self.limit = limit;
        self.admit(now, tell);
    }

    /// Starts a full set of permits: the branch was mounted again, as `number`.
    pub(super) fn renew(&mut self, number: u32, now: u64) {
        self.generations.push(Generation { number, since: now, held: 0, lost: 0, moved: now });
        self.forget_generations();
    }

    /// Checks whether a call may enter now.
    pub(super) fn may_enter(&self, kind: CallKind, stalls: bool) -> Result<(), Obstacle> {
        let present = self.present();
        if kind == CallKind::Optional && stalls || present.lost >= self.limit {
            return Err(Obstacle::Hopeless);
        }
        if present.held < self.limit { Ok(()) } else { Err(Obstacle::Full) }
    }

    /// Admits a call of the present generation.
    pub(super) fn enter(&mut self, kind: CallKind, caller: C, now: u64) -> Permit {
        self.enter_as(self.present().number, kind, caller, now)
    }

    /// Appends `caller` to the queue.
    pub(super) fn wait(&mut self, kind: CallKind, caller: C, now: u64) {
        let generation = self.present().number;
        self.queue.push_back(Waiting { generation, came: now, kind, caller });
    }

    /// Ends a call. Returns its caller, and whether it was given up.
    pub(super) fn leave(
        &mut self,
        permit: Permit,
        now: u64,
        tell: impl FnMut(&C, QueueAnswer),
    ) -> Option<(C, bool)> {
        let call = self.calls.get_mut(permit.slot)?.take_if(|call| call.number == permit.number)?;
        self.vacant.push(permit.slot);
        let generation = self.generation(call.generation)?;
        generation.held -= 1;
        generation.lost -= usize::from(call.is_lost);
        generation.moved = now;
        self.admit(now, tell);
        self.forget_generations();
        self.check();
        Some((call.caller, call.is_lost))
    }

    /// Gives a call up: its request was answered by another thread. False if it has ended.
    pub(super) fn give_up(&mut self, permit: Permit, mut tell: impl FnMut(&C, QueueAnswer)) -> bool {
        let Some(call) = self.calls.get_mut(permit.slot).and_then(Option::as_mut) else { return false };
        if call.number != permit.number || std::mem::replace(&mut call.is_lost, true) {
            return false;
        }
        let (number, limit) = (call.generation, self.limit);
        if let Some(generation) = self.generation(number) {
            generation.lost += 1;
            if generation.lost >= limit {
                refuse(&mut self.queue, |waiting| waiting.generation == number, &mut tell);
            }
        }
        self.check();
        true
    }

    /// Refuses all callers in the queue.
    pub(super) fn refuse_all(&mut self, mut tell: impl FnMut(&C, QueueAnswer)) {
        refuse(&mut self.queue, |_| true, &mut tell);
    }

    /// Notes a successful probe: long calls get more time.
    pub(super) fn has_answered(&mut self, now: u64) {
        self.answered = now;
    }

    /// Returns the number of calls inside, in any mount.
    pub(super) fn inside(&self) -> usize {
        self.generations.iter().map(|generation| generation.held).sum()
    }

    /// Returns the number of callers that wait for a permit.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of calls that ever entered.
    pub(super) fn entered(&self) -> u64 {
        self.entered
    }

    /// True if a short call has been inside the present mount for longer than `timeout`. Calls that were given up do
    /// not count.
    pub(super) fn stalls(&self, now: u64, timeout: u64) -> bool {
        let present = self.present().number;
        self.calls.iter().flatten().any(|call| {
            let counts = call.kind != CallKind::Long && !call.is_lost && call.generation == present;
            counts && now.saturating_sub(call.began) > timeout
        })
    }

    /// Finds the calls that have been inside for longer than `limit`, and refuses callers that have waited that long
    /// without any permit becoming free. Calls in an earlier mount do not count against the present one. `hung`: long
    /// calls overstay too.
    pub(super) fn look(
        &mut self,
        (now, limit, hung): (u64, u64, bool),
        mut tell: impl FnMut(&C, QueueAnswer),
    ) -> Overdue<C>
    where
        C: Clone,
    {
        let present = *self.present();
        let is_late = |since: u64| now.saturating_sub(since) > limit;
        let mut found =
            Overdue { inside: self.inside(), overstayed: false, doubtful: false, calls: Vec::new() };
        for (slot, call) in self.calls.iter().enumerate() {
            let Some(call) = call.as_ref().filter(|call| !call.is_lost && is_late(call.began)) else {
                continue;
            };
            let is_long = call.kind == CallKind::Long;
            let given_up = if call.generation != present.number {
                !is_long || is_late(call.began.max(present.since))
            } else if is_long {
                found.doubtful |= !hung && is_late(call.began.max(self.answered));
                hung
            } else {
                found.overstayed = true;
                true
            };
            if given_up {
                found.calls.push((Permit { slot, number: call.number }, call.caller.clone()));
            }
        }
        let generations = &self.generations;
        let moved = |number| generations.iter().find(|it| it.number == number).map_or(0, |it| it.moved);
        let in_vain = |waiting: &Waiting<C>| is_late(waiting.came.max(moved(waiting.generation)));
        refuse(&mut self.queue, in_vain, &mut tell);
        found
    }

    /// Refuses optional callers, because the branch may hang.
    pub(super) fn refuse_optional(&mut self, mut tell: impl FnMut(&C, QueueAnswer)) {
        refuse(&mut self.queue, |waiting| waiting.kind == CallKind::Optional, &mut tell);
    }

    /// Gives free permits to waiting callers of the same generation, in order.
    fn admit(&mut self, now: u64, mut tell: impl FnMut(&C, QueueAnswer)) {
        let mut at = 0;
        while let Some(number) = self.queue.get(at).map(|waiting| waiting.generation) {
            let limit = self.limit;
            if self.generation(number).is_some_and(|generation| generation.held >= limit) {
                at += 1;
                continue;
            }
            let Some(Waiting { kind, caller, .. }) = self.queue.remove(at) else { return };
            let permit = self.enter_as(number, kind, caller, now);
            if let Some(Some(call)) = self.calls.get(permit.slot) {
                tell(&call.caller, QueueAnswer::Enter(permit));
            }
        }
    }

    fn enter_as(&mut self, generation: u32, kind: CallKind, caller: C, now: u64) -> Permit {
        self.entered += 1;
        let number = self.entered;
        let call = Some(Call { number, generation, began: now, kind, is_lost: false, caller });
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.calls[slot] = call;
                slot
            }
            None => {
                self.calls.push(call);
                self.calls.len() - 1
            }
        };
        if let Some(generation) = self.generation(generation) {
            generation.held += 1;
        }
        self.check();
        Permit { slot, number }
    }

    fn present(&self) -> &Generation {
        const NONE: &Generation = &Generation { number: 0, since: 0, held: 0, lost: 0, moved: 0 };
        self.generations.last().unwrap_or(NONE)
    }

    fn generation(&mut self, number: u32) -> Option<&mut Generation> {
        self.generations.iter_mut().find(|generation| generation.number == number)
    }

    fn forget_generations(&mut self) {
        if self.generations.len() > 1 {
            let (present, queue) = (self.present().number, &self.queue);
            let is_awaited = |number| queue.iter().any(|waiting| waiting.generation == number);
            self.generations.retain(|it| it.number == present || it.held > 0 || is_awaited(it.number));
        }
    }

    /// In debug builds, checks that the counts match the calls, and that no caller waits while a permit is free.
    fn check(&self) {
        if cfg!(debug_assertions) {
            for generation in &self.generations {
                let calls =
                    || self.calls.iter().flatten().filter(|call| call.generation == generation.number);
                assert_eq!(generation.held, calls().count(), "permits held");
                assert_eq!(generation.lost, calls().filter(|call| call.is_lost).count(), "permits lost");
            }
        }
    }
}

fn refuse<C>(
    queue: &mut VecDeque<Waiting<C>>,
    whom: impl Fn(&Waiting<C>) -> bool,
    tell: &mut impl FnMut(&C, QueueAnswer),
) {
    queue.retain(|waiting| {
        let refused = whom(waiting);
        if refused {
            tell(&waiting.caller, QueueAnswer::Refused);
        }
        !refused
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers to callers, in order.
    #[derive(Default)]
    struct Answers(Vec<(&'static str, QueueAnswer)>);

    impl Answers {
        fn by(&mut self) -> impl FnMut(&&'static str, QueueAnswer) {
            |caller, answer| self.0.push((*caller, answer))
        }

        fn entered(&self) -> Vec<&'static str> {
            self.0.iter().filter(|(_, answer)| *answer != QueueAnswer::Refused).map(|(who, _)| *who).collect()
        }

        fn refused(&self) -> Vec<&'static str> {
            self.0.iter().filter(|(_, answer)| *answer == QueueAnswer::Refused).map(|(who, _)| *who).collect()
        }
    }

    fn enter(calls: &mut Inflight<&'static str>, who: &'static str) -> Permit {
        assert_eq!(calls.may_enter(CallKind::Short, false), Ok(()));
        calls.enter(CallKind::Short, who, 1)
    }

    #[test]
    fn calls_go_in_by_order_of_arrival() {
        let (mut calls, mut answers) = (Inflight::new(1), Answers::default());
        let first = enter(&mut calls, "first");
        for who in ["second", "third"] {
            assert_eq!(calls.may_enter(CallKind::Short, false), Err(Obstacle::Full));
            calls.wait(CallKind::Short, who, 2);
        }
        assert_eq!(calls.leave(first, 3, answers.by()), Some(("first", false)));
        assert_eq!(calls.may_enter(CallKind::Short, false), Err(Obstacle::Full));
        let [("second", QueueAnswer::Enter(second))] = answers.0[..] else { panic!("{:?}", answers.0) };
        calls.leave(second, 4, answers.by());
        assert_eq!(answers.entered(), ["second", "third"]);
        // A permit is returned only once.
        assert_eq!(calls.leave(first, 5, answers.by()), None);
        assert_eq!(calls.inside(), 1);
    }

    #[test]
    fn a_branch_that_is_mounted_again_has_all_permits_whatever_is_stuck_in_the_old_mount() {
        let (mut calls, mut answers) = (Inflight::new(2), Answers::default());
        let stuck = [enter(&mut calls, "a"), enter(&mut calls, "b")];
        for permit in stuck {
            assert!(calls.give_up(permit, answers.by()));
        }
        assert_eq!(calls.may_enter(CallKind::Short, false), Err(Obstacle::Hopeless));
        calls.renew(1, 10);
        let fresh = [enter(&mut calls, "c"), enter(&mut calls, "d")];
        assert_eq!(calls.may_enter(CallKind::Short, false), Err(Obstacle::Full));
        // A permit returned from the old mount does not free one in the new mount.
        assert_eq!(calls.leave(stuck[0], 11, answers.by()), Some(("a", true)));
        assert_eq!(calls.may_enter(CallKind::Short, false), Err(Obstacle::Full));
        assert_eq!(calls.inside(), 3);
        calls.leave(fresh[0], 12, answers.by());
        assert_eq!(calls.may_enter(CallKind::Short, false), Ok(()));
        calls.leave(stuck[1], 13, answers.by());
        assert_eq!((calls.generations.len(), calls.inside()), (1, 1));
    }

    #[test]
    fn callers_that_wait_for_the_old_mount_go_into_it() {
        let (mut calls, mut answers) = (Inflight::new(1), Answers::default());
        let old = enter(&mut calls, "old");
        calls.wait(CallKind::Short, "next", 2);
        calls.renew(1, 3);
        let new = enter(&mut calls, "new");
        calls.leave(new, 4, answers.by());
        assert_eq!(answers.entered(), <[&str; 0]>::default());
        calls.leave(old, 5, answers.by());
        assert_eq!(answers.entered(), ["next"]);
        assert_eq!(calls.may_enter(CallKind::Short, false), Ok(()));
    }

    #[test]
    fn an_overdue_call_in_the_old_mount_is_given_up_and_says_nothing_of_the_new_one() {
        let (mut calls, mut answers) = (Inflight::new(4), Answers::default());
        let brief = enter(&mut calls, "brief");
        calls.enter(CallKind::Long, "long", 1);
        calls.renew(1, 50);
        let found = calls.look((120, 100, false), answers.by());
        assert_eq!(
            (found.overstayed, found.doubtful, &found.calls[..]),
            (false, false, &[(brief, "brief")][..])
        );
        calls.give_up(brief, answers.by());
        assert_eq!(calls.look((151, 100, false), answers.by()).calls.len(), 1);
    }

    #[test]
    fn a_waiting_call_is_refused_when_no_permit_becomes_free_within_the_limit() {
        let (mut calls, mut answers) = (Inflight::new(1), Answers::default());
        let mut inside = enter(&mut calls, "0");
        ["1", "2", "3"].into_iter().for_each(|who| calls.wait(CallKind::Long, who, 1));
        // Busy: each call takes 90 of 100.
        for now in [90, 180] {
            calls.leave(inside, now, answers.by());
            let Some((_, QueueAnswer::Enter(next))) = answers.0.last() else { panic!("{:?}", answers.0) };
            inside = *next;
            calls.look((now + 90, 100, false), answers.by());
        }
        assert_eq!(answers.entered(), ["1", "2"]);
        calls.look((281, 100, false), answers.by());
        assert_eq!(answers.refused(), ["3"]);
    }

    #[test]
    fn no_call_waits_where_all_permits_are_lost() {
        let (mut calls, mut answers) = (Inflight::new(1), Answers::default());
        let stuck = enter(&mut calls, "stuck");
        calls.wait(CallKind::Short, "waits", 1);
        calls.wait(CallKind::Optional, "spare", 1);
        calls.refuse_optional(answers.by());
        assert_eq!(answers.refused(), ["spare"]);
        assert!(calls.give_up(stuck, answers.by()) && !calls.give_up(stuck, answers.by()));
        assert_eq!(answers.refused(), ["spare", "waits"]);
    }

    #[test]
    fn a_higher_limit_admits_waiting_calls() {
        let (mut calls, mut answers) = (Inflight::new(1), Answers::default());
        enter(&mut calls, "a");
        ["b", "c", "d"].into_iter().for_each(|who| calls.wait(CallKind::Short, who, 1));
        calls.set_limit(3, 2, answers.by());
        assert_eq!(answers.entered(), ["b", "c"]);
        calls.refuse_all(answers.by());
        assert_eq!(answers.refused(), ["d"]);
    }
}
