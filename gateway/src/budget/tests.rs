use std::{sync::Barrier, thread};

use strait_contract::budget::Limits;

use super::*;

fn agent() -> AgentName {
    "coder".parse().unwrap()
}

fn dollars(cents: u64) -> Usd {
    Usd(cents * Usd::DOLLAR / 100)
}

fn worst(tokens: u64, cents: u64) -> Worst {
    Worst { tokens, usd: Some(dollars(cents)) }
}

fn money(run: u64, day: u64, total: u64) -> Budget {
    let usd = |cents| Limits { usd: Some(dollars(cents)), ..Limits::default() };
    Budget { run: usd(run), day: usd(day), total: usd(total) }
}

fn budgets(budget: Budget) -> Budgets {
    let budgets = Budgets::default();
    budgets.set(vec![(agent(), budget)]);
    budgets.begin();
    budgets
}

const TODAY: Day = Day(20_000);

#[test]
fn fifty_at_once_on_a_nearly_spent_budget_overshoot_by_one_at_most_a18_case72() {
    for round in 0..20 {
        let budgets = budgets(money(100_000, 1000, 100_000));
        let spent = Arc::new(RunUsed::default());
        // 9.99 of 10.00 are spent; each call may come to 0.05.
        let first = budgets.reserve(&agent(), &spent, worst(1, 999), TODAY).unwrap();
        first.sent();
        first.settle(1, Some(dollars(999)));
        let (together, runs) = (Barrier::new(50), [Arc::new(RunUsed::default()), Arc::clone(&spent)]);
        let admitted: usize = thread::scope(|scope| {
            let calls: Vec<_> = (0..50)
                .map(|call| {
                    let (budgets, together, run) = (&budgets, &together, &runs[call % 2]);
                    scope.spawn(move || {
                        together.wait();
                        let Ok(reserved) = budgets.reserve(&agent(), run, worst(10, 5), TODAY) else {
                            return 0;
                        };
                        reserved.sent();
                        thread::yield_now();
                        reserved.settle(10, Some(dollars(5)));
                        1
                    })
                })
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).sum()
        });
        assert_eq!(admitted, 1, "round {round}");
        let account = budgets.account(&agent());
        assert_eq!(account.today, Used { spent: account.today.spent, held: Amount::default() });
        assert_eq!(account.today.spent.usd, dollars(999 + 5));
    }
}

#[test]
fn a_refusal_says_what_is_used_up_and_what_to_do() {
    let budgets = budgets(money(100, 1000, 10_000));
    let run = Arc::new(RunUsed::default());
    let held = budgets.reserve(&agent(), &run, worst(10, 120), TODAY).unwrap();
    let refused = budgets.reserve(&agent(), &run, worst(10, 120), TODAY).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the budget of agent `coder` for this run is used up: $1.20 of $1.00, of which calls under way hold up to $1.20"
    );
    assert!(refused.passes_later() && refused.hint().starts_with("try again"));
    held.sent();
    held.settle(10, Some(dollars(101)));
    let refused = budgets.reserve(&agent(), &run, worst(10, 120), TODAY).unwrap_err();
    assert_eq!(refused.to_string(), "the budget of agent `coder` for this run is used up: $1.01 of $1.00");
    assert!(!refused.passes_later());
    assert_eq!(
        refused.hint(),
        "a new run begins at zero; or the operator raises `agents.coder.budget.run.usd`, then `strait reload`"
    );
    assert_eq!(refused.code().as_str(), "BUDGET_EXCEEDED");
    // Another run of the agent, and another agent, go on.
    assert!(budgets.reserve(&agent(), &Arc::default(), worst(1, 1), TODAY).is_ok());
    assert!(budgets.reserve(&"other".parse().unwrap(), &run, worst(1, 1), TODAY).is_ok());
}

#[test]
fn a_thousand_calls_that_are_aborted_or_never_sent_leave_an_exact_count_case73() {
    let budgets = budgets(Budget::default());
    let run = Arc::new(RunUsed::default());
    for call in 0..1000_u64 {
        let reserved = budgets.reserve(&agent(), &run, worst(1000, 10), TODAY).unwrap();
        match call % 4 {
            // Never sent: nothing. Sent and lost sight of: everything. Ended: what it came to, once.
            0 => assert_eq!(reserved.close().amount, Amount::default()),
            1 => reserved.sent(),
            2 => drop(reserved),
            _ => {
                reserved.sent();
                let first = reserved.settle(3, None);
                assert_eq!(reserved.settle(900, None), first);
                assert_eq!((reserved.close(), first.amount.tokens), (first, 3));
            }
        }
    }
    let spent = Amount { calls: 500, tokens: 250 * 1000 + 250 * 3, usd: dollars(250 * 10) };
    let account = budgets.account(&agent());
    let expected = Used { spent, held: Amount::default() };
    assert_eq!((account.today, account.total, run.get()), (expected, expected, expected));
}

#[test]
fn calls_and_tokens_are_limited_too_and_the_count_of_calls_is_exact() {
    let run = Limits { calls: Some(3), ..Limits::default() };
    let budgets = budgets(Budget { run, ..Budget::default() });
    let used = Arc::new(RunUsed::default());
    let open: Vec<_> =
        (0..3).map(|_| budgets.reserve(&agent(), &used, worst(0, 0), TODAY).unwrap()).collect();
    assert!(budgets.reserve(&agent(), &used, worst(0, 0), TODAY).is_err());
    // One that was never sent gives its place back.
    drop(open);
    assert!(budgets.reserve(&agent(), &used, worst(0, 0), TODAY).is_ok());
    let day = Limits { tokens: Some(100), ..Limits::default() };
    let budgets = self::budgets(Budget { day, ..Budget::default() });
    let first = budgets.reserve(&agent(), &used, worst(100, 0), TODAY).unwrap();
    first.sent();
    first.settle(100, None);
    let refused = budgets.reserve(&agent(), &used, worst(1, 0), TODAY).unwrap_err();
    assert!(refused.hint().contains("`agents.coder.budget.day.tokens`"), "{}", refused.hint());
    assert!(budgets.reserve(&agent(), &used, worst(1, 0), Day(TODAY.0 + 1)).is_ok(), "the next day");
}

#[test]
fn a_model_without_a_price_needs_another_limit_than_money_case74() {
    let unpriced = Worst { tokens: 10, usd: None };
    let run = Arc::new(RunUsed::default());
    let money_alone = budgets(money(100, 100, 100));
    let refused = money_alone.reserve(&agent(), &run, unpriced, TODAY).unwrap_err();
    assert_eq!(refused, Refusal::Unpriced { agent: agent() });
    for key in ["`[prices]`", "`agents.coder.budget`", "`tokens`", "`calls`"] {
        assert!(refused.hint().contains(key), "{}", refused.hint());
    }
    assert!(money_alone.reserve(&agent(), &run, worst(10, 1), TODAY).is_ok());
    let mut also = money(100, 100, 100);
    also.total.tokens = Some(15);
    let also = budgets(also);
    let first = also.reserve(&agent(), &run, unpriced, TODAY).unwrap();
    first.sent();
    first.settle(15, None);
    assert!(matches!(
        also.reserve(&agent(), &run, unpriced, TODAY),
        Err(Refusal::UsedUp { scope: Scope::Total, unit: Unit::Tokens, .. })
    ));
    assert!(budgets(Budget::default()).reserve(&agent(), &run, unpriced, TODAY).is_ok());
}

#[test]
fn a_gateway_that_starts_goes_on_where_the_ledger_stands_case73() {
    let before = Budgets::default();
    let run = Arc::new(RunUsed::default());
    let done = before.reserve(&agent(), &run, worst(100, 10), TODAY).unwrap();
    done.sent();
    done.settle(50, Some(dollars(4)));
    let open = before.reserve(&agent(), &run, worst(100, 10), TODAY).unwrap();
    let account = before.account(&agent());
    assert_eq!(account.today.held.tokens, 100);
    // It dies with a call under way, which counts whole.
    let (after, again) = (Budgets::default(), Arc::new(RunUsed::default()));
    after.set(vec![(agent(), money(14, 1000, 1000))]);
    after.agent_use(AgentUse { agent: agent(), account });
    after.run_use(&again, run.get().all());
    after.begin();
    assert_eq!(after.account(&agent()).total.spent.tokens, 150);
    let refused = after.reserve(&agent(), &again, worst(1, 1), TODAY).unwrap_err();
    assert!(matches!(refused, Refusal::UsedUp { scope: Scope::Run, used, .. } if used == dollars(14).0));
    // An agent that starts later doesn't change what this gateway has counted, but for a reset.
    let mut ledger = account.closed();
    ledger.reset();
    after.agent_use(AgentUse { agent: agent(), account: ledger });
    after.run_use(&again, Amount::default());
    assert_eq!(again.get().spent.tokens, 150);
    let account = after.account(&agent());
    assert_eq!((account.total.spent.tokens, account.today.spent.tokens), (0, 150));
    drop(open);
}

#[test]
fn what_is_left_is_the_least_of_all_limits() {
    let budgets = budgets(money(100, 1000, 10_000));
    let run = Arc::new(RunUsed::default());
    assert!((budgets.left(&agent(), &run) - 1.0).abs() < 1e-9);
    let held = budgets.reserve(&agent(), &run, worst(1, 80), TODAY).unwrap();
    assert!((budgets.left(&agent(), &run) - 0.2).abs() < 1e-9);
    drop(held);
    assert!((budgets.left(&"other".parse().unwrap(), &run) - 1.0).abs() < 1e-9);
}
