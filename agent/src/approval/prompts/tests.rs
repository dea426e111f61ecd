use super::*;

struct Clock(Instant);

impl Clock {
    fn at(&self, seconds: u64) -> (Instant, u64) {
        (self.0 + Duration::from_secs(seconds), seconds * 1000)
    }
}

const BOUNDS: Bounds = Bounds { prompts_per_run: 3, timeout: Duration::from_secs(60) };

struct Rig {
    prompts: Prompts,
    clock: Clock,
    next: u32,
}

impl Rig {
    fn new() -> Self {
        Self { prompts: Prompts::default(), clock: Clock(Instant::now()), next: 0 }
    }

    /// A call of this digest.
    fn ask(&mut self, run: &str, digest: u8, seconds: u64) -> (RecordId, Asked, Effects) {
        self.next += 1;
        let call = RecordId::now();
        let held = Held {
            call,
            run: run.parse().unwrap(),
            digest: CallDigest([digest; 32]),
            rules: vec!["ask".into()],
            why: "why".into(),
            timeout_seconds: None,
            shown: Shown {
                action: "POST".into(),
                target: format!("https://ok.test/{digest}"),
                ..Shown::default()
            },
        };
        let owner = Owner { agent: "coder".into(), user: "ann".into() };
        let id: ApprovalId = format!("p{}", self.next).parse().unwrap();
        let (asked, effects) =
            self.prompts.ask(held, (7, owner, Vec::new()), id, BOUNDS, self.clock.at(seconds));
        (call, asked, effects)
    }

    /// One that must wait; its prompt.
    fn waits(&mut self, digest: u8, seconds: u64) -> (RecordId, ApprovalId) {
        match self.ask("run", digest, seconds) {
            (call, Asked::Waits { id, .. }, _) => (call, id),
            other => panic!("{other:?}"),
        }
    }

    fn approve(&mut self, id: &ApprovalId, scope: Scope, seconds: u64) -> Vec<(RecordId, Answer)> {
        self.prompts.approve(id, scope, "ann", self.clock.at(seconds)).expect("it is open").answers
    }

    fn is_granted(&mut self, digest: u8, seconds: u64) -> bool {
        matches!(self.ask("run", digest, seconds).1, Asked::Answered(Answer::Granted(_)))
    }
}

fn calls(answers: &[(RecordId, Answer)]) -> Vec<RecordId> {
    answers.iter().map(|(call, _)| *call).collect()
}

#[test]
fn identical_calls_wait_at_one_prompt_and_each_approval_lets_one_go_the_oldest_first() {
    let mut rig = Rig::new();
    let (first, id) = rig.waits(1, 0);
    let (second, same) = rig.waits(1, 1);
    let (_, other) = rig.waits(2, 1);
    assert!(id == same && id != other);
    assert_eq!((rig.prompts.get(&id).unwrap().waiting(), rig.prompts.get(&id).unwrap().asked), (2, 2));
    assert_eq!(calls(&rig.approve(&id, Scope::Times(1), 2)), [first]);
    let answers = rig.approve(&id, Scope::Times(1), 3);
    assert_eq!(calls(&answers), [second]);
    assert!(
        matches!(&answers[0].1, Answer::Granted(Settled { waited_ms: 2000, by: Some(by), .. }) if by == "ann")
    );
    assert!(
        rig.prompts.approve(&id, Scope::Times(1), "ann", rig.clock.at(4)).is_none(),
        "nothing is left to approve"
    );
    assert!(!rig.is_granted(1, 5), "both were used");
}

#[test]
fn an_approval_that_nobody_waits_for_serves_one_identical_call_within_ten_minutes() {
    let mut rig = Rig::new();
    let (call, id) = rig.waits(1, 0);
    rig.prompts.withdraw(call);
    assert_eq!(rig.prompts.get(&id).unwrap().waiting(), 0);
    assert!(rig.approve(&id, Scope::Times(1), 30).is_empty());
    assert!(
        rig.prompts.approve(&id, Scope::Times(1), "ann", rig.clock.at(31)).is_none(),
        "it is approved already"
    );
    assert!(matches!(rig.ask("another", 1, 32).1, Asked::Waits { .. }), "another run has no part in it");
    assert!(rig.is_granted(1, 600));
    assert!(!rig.is_granted(1, 601), "once");
    let (call, id) = rig.waits(2, 700);
    rig.prompts.withdraw(call);
    rig.approve(&id, Scope::Times(1), 700);
    assert!(!rig.is_granted(2, 1301), "too late, whether or not the end was noticed");
    assert_eq!(rig.approve(&id, Scope::Times(1), 1302).len(), 1, "and asked about again");
}

#[test]
fn a_count_is_used_by_those_who_wait_and_then_by_those_who_come() {
    let mut rig = Rig::new();
    let (first, id) = rig.waits(1, 0);
    let (second, _) = rig.waits(1, 0);
    assert_eq!(calls(&rig.approve(&id, Scope::Times(3), 1)), [first, second]);
    assert!(rig.is_granted(1, 2) && !rig.is_granted(1, 3));
}

#[test]
fn for_the_run_means_this_digest_until_the_run_ends_or_it_is_taken_back() {
    let mut rig = Rig::new();
    let (first, id) = rig.waits(1, 0);
    assert_eq!(calls(&rig.approve(&id, Scope::Run, 1)), [first]);
    assert!(rig.prompts.expire(rig.clock.at(100_000)).closed.is_empty());
    assert!(rig.is_granted(1, 100_000) && rig.is_granted(1, 100_001));
    assert!(!rig.is_granted(2, 2), "another call");
    let effects = rig.prompts.deny(&id, None, "ann", rig.clock.at(3)).unwrap();
    assert_eq!(effects.closed[0].end, End::Revoked);
    assert!(!rig.is_granted(1, 4));
    let (_, id) = rig.waits(3, 5);
    rig.approve(&id, Scope::Run, 5);
    let effects = rig.prompts.run_ended(&"run".parse().unwrap(), 6);
    assert_eq!(effects.closed.len(), 3);
    assert!(!rig.is_granted(3, 7));
}

#[test]
fn a_refusal_answers_every_call_that_waits_with_the_note() {
    let mut rig = Rig::new();
    let (first, id) = rig.waits(1, 0);
    let (second, _) = rig.waits(1, 0);
    let effects = rig.prompts.deny(&id, Some("not today"), "bob", rig.clock.at(1)).unwrap();
    assert_eq!(calls(&effects.answers), [first, second]);
    assert!(matches!(&effects.answers[0].1, Answer::Denied(settled, Some(note))
        if note == "not today" && settled.by.as_deref() == Some("bob")));
    assert!(rig.prompts.next_end().is_none() && rig.prompts.calls.is_empty() && rig.prompts.open.is_empty());
}

#[test]
fn each_call_has_its_own_time_and_a_prompt_ends_with_the_last() {
    let mut rig = Rig::new();
    let (first, id) = rig.waits(1, 0);
    let (second, _) = rig.waits(1, 30);
    assert_eq!(rig.prompts.next_end(), Some(rig.clock.at(60).0));
    assert!(rig.prompts.expire(rig.clock.at(59)).answers.is_empty());
    let effects = rig.prompts.expire(rig.clock.at(60));
    assert_eq!((calls(&effects.answers), effects.closed.len()), (vec![first], 0));
    assert!(matches!(&effects.answers[0].1, Answer::Expired(Settled { waited_ms: 60_000, by: None, .. })));
    let effects = rig.prompts.expire(rig.clock.at(90));
    assert_eq!((calls(&effects.answers), effects.closed[0].end), (vec![second], End::Expired));
    assert!(rig.prompts.get(&id).is_none() && rig.prompts.next_end().is_none());
}

#[test]
fn a_run_has_so_many_prompts_and_those_that_nobody_waits_at_give_way() {
    let mut rig = Rig::new();
    let (first, idle) = rig.waits(1, 0);
    rig.waits(2, 0);
    rig.waits(3, 0);
    let (_, asked, _) = rig.ask("run", 4, 1);
    assert!(matches!(asked, Asked::Answered(Answer::Unavailable(why)) if why.contains("per_run")));
    assert!(matches!(rig.ask("another", 4, 1).1, Asked::Waits { .. }), "other runs have their own");
    assert!(
        matches!(rig.ask("run", 3, 1).1, Asked::Waits { new: false, .. }),
        "an identical one needs no prompt"
    );
    rig.prompts.withdraw(first);
    let (_, asked, effects) = rig.ask("run", 4, 2);
    assert!(matches!(asked, Asked::Waits { new: true, .. }));
    assert_eq!((effects.closed[0].id.clone(), effects.closed[0].end), (idle, End::Withdrawn));
}

#[test]
fn a_run_has_so_many_calls_waiting_and_a_grant_is_not_among_its_prompts() {
    let mut rig = Rig::new();
    for _ in 0..CALLS_PER_RUN {
        rig.waits(1, 0);
    }
    for digest in [1, 2] {
        let (_, asked, _) = rig.ask("run", digest, 1);
        assert!(matches!(asked, Asked::Answered(Answer::Unavailable(why)) if why.contains("1024")));
    }
    let mut rig = Rig::new();
    for digest in 0..10 {
        let (_, id) = rig.waits(digest, 0);
        rig.approve(&id, Scope::Run, 1);
    }
}

#[test]
fn a_gateway_that_is_gone_ends_its_calls() {
    let mut rig = Rig::new();
    let (first, waiting) = rig.waits(1, 0);
    let effects = rig.prompts.session_ended(7, 2);
    assert_eq!(effects.closed.len(), 1);
    assert_eq!((effects.closed[0].id.clone(), effects.closed[0].end), (waiting, End::GatewayGone));
    assert_eq!(calls(&effects.answers), [first], "whoever passes answers on is let go");
    assert!(rig.prompts.calls.is_empty() && rig.prompts.deadlines.is_empty());
}

#[test]
fn prompts_that_are_over_are_remembered_within_a_bound() {
    let mut rig = Rig::new();
    for n in 0..300_u64 {
        let (_, id) = rig.waits(1, n);
        rig.prompts.deny(&id, None, "ann", rig.clock.at(n)).unwrap();
    }
    assert_eq!(rig.prompts.past().count(), REMEMBERED);
    assert!(rig.prompts.ends.is_empty() && rig.prompts.deadlines.is_empty());
}

#[test]
fn executions_that_were_granted_are_worth_nothing_after_their_gateway_and_those_of_a_run_are() {
    let mut rig = Rig::new();
    let (_, once) = rig.waits(1, 0);
    let (_, for_run) = rig.waits(2, 0);
    rig.approve(&once, Scope::Times(3), 1);
    rig.approve(&for_run, Scope::Run, 1);
    assert!(rig.prompts.session_ended(8, 2000).closed.is_empty(), "another gateway's end is no matter");
    assert!(rig.is_granted(1, 2), "the control");
    let ended = rig.prompts.session_ended(7, 3000);
    assert_eq!(
        ended.closed.iter().map(|past| (&past.id, past.end)).collect::<Vec<_>>(),
        [(&once, End::GatewayGone)]
    );
    assert!(!rig.is_granted(1, 4), "people are asked again");
    assert!(rig.is_granted(2, 4));
}
