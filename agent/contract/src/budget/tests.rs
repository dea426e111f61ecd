use proptest::prelude::*;

use super::*;

fn tokens(tokens: u64) -> Amount {
    Amount { calls: 1, tokens, usd: Usd(tokens * 1000) }
}

fn charge(day: u32, amount: u64) -> Charge {
    Charge { day: Day(day), amount: tokens(amount) }
}

#[test]
fn a_new_day_begins_at_zero_and_a_call_counts_in_the_day_of_its_decision_case73() {
    let mut account = Account::default();
    account.hold(&charge(10, 100));
    account.settle(&charge(10, 100), tokens(40));
    assert_eq!((account.today.all().tokens, account.total.all().tokens), (40, 40));
    // Begun in the old day, over in the new one.
    account.hold(&charge(10, 7));
    account.hold(&charge(11, 5));
    assert_eq!((account.day, account.today.all().tokens, account.total.all().tokens), (Day(11), 5, 52));
    account.settle(&charge(10, 7), tokens(7));
    account.settle(&charge(11, 5), tokens(3));
    assert_eq!((account.today.all().tokens, account.total.all().tokens), (3, 50));
    assert_eq!(account.total.held, Amount::default());
}

#[test]
fn a_clock_that_goes_back_a_day_opens_no_free_window_case73() {
    let mut account = Account::default();
    account.hold(&charge(10, 100));
    account.settle(&charge(10, 100), tokens(100));
    assert_eq!(account.day_at(Day(9)), Day(10));
    let held = Charge { day: account.day_at(Day(9)), amount: tokens(1) };
    account.hold(&held);
    assert_eq!((account.day, account.today.all().tokens), (Day(10), 101));
    // And no false refusal for ever if the clock had been a year ahead: the window follows it back, with its count.
    let mut ahead = Account::default();
    ahead.hold(&charge(400, 100));
    assert_eq!(ahead.day_at(Day(30)), Day(30));
    ahead.hold(&charge(30, 1));
    assert_eq!((ahead.day, ahead.today.all().tokens), (Day(30), 101));
    ahead.settle(&charge(400, 100), tokens(100));
    ahead.settle(&charge(30, 1), tokens(1));
    assert_eq!((ahead.today.all().tokens, ahead.today.held), (101, Amount::default()));
    ahead.turn(Day(31));
    assert_eq!(ahead.today, Used::default());
}

#[test]
fn the_total_is_set_back_and_calls_under_way_count_afterwards_case73() {
    let mut account = Account::default();
    account.hold(&charge(10, 100));
    account.settle(&charge(10, 100), tokens(90));
    account.hold(&charge(10, 50));
    account.reset();
    assert_eq!((account.total.all().tokens, account.today.all().tokens), (50, 140));
    account.settle(&charge(10, 50), tokens(20));
    assert_eq!((account.total.all().tokens, account.total.held), (20, Amount::default()));
}

#[test]
fn who_counts_ahead_of_the_record_follows_a_reset_without_losing_what_is_not_on_record_yet_case73() {
    let spend = |account: &mut Account, amount| {
        account.hold(&charge(10, amount));
        account.settle(&charge(10, amount), tokens(amount));
    };
    let (mut ahead, mut record) = (Account::default(), Account::default());
    spend(&mut ahead, 90);
    spend(&mut record, 90);
    spend(&mut ahead, 4);
    record.reset();
    ahead.follow(record.cleared);
    spend(&mut record, 4);
    assert_eq!(ahead, record);
    assert_eq!(ahead.total.spent.tokens, 4);
    // Told twice, it is done once.
    ahead.follow(record.cleared);
    assert_eq!(ahead, record);
}

#[test]
fn a_limit_is_reached_when_nothing_is_left() {
    let limits = Limits { calls: Some(2), tokens: None, usd: Some(Usd(10)) };
    let used = |calls, usd| Amount { calls, tokens: 1 << 40, usd: Usd(usd) };
    assert_eq!(limits.reached(&used(1, 9)), None);
    assert_eq!(limits.reached(&used(2, 0)), Some((Unit::Calls, 2)));
    assert_eq!(limits.reached(&used(0, 10)), Some((Unit::Usd, 10)));
    assert_eq!(
        Limits { calls: Some(0), ..Limits::default() }.reached(&Amount::default()),
        Some((Unit::Calls, 0))
    );
}

proptest! {
    /// Whatever the order in which calls begin and end and days turn: once all are over nothing is held, and the total is
    /// the sum of what they came to.
    #[test]
    fn when_all_calls_are_over_the_total_is_their_sum(
        calls in prop::collection::vec((0_u64..1000, 0_u64..1000, 5_u32..9, any::<bool>()), 0..100),
    ) {
        let mut account = Account::default();
        let mut open: Vec<(Charge, Amount)> = Vec::new();
        let mut sum = Amount::default();
        for (worst, real, clock, ends) in calls {
            let held = Charge { day: account.day_at(Day(clock)), amount: tokens(worst) };
            account.hold(&held);
            open.push((held, tokens(real)));
            sum = sum.plus(tokens(real));
            if ends {
                let (held, spent) = open.remove(open.len() / 2);
                account.settle(&held, spent);
            }
        }
        for (held, spent) in open {
            account.settle(&held, spent);
        }
        prop_assert_eq!(account.total, Used { spent: sum, held: Amount::default() });
        prop_assert_eq!(account.today.held, Amount::default());
    }
}
