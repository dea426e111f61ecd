use strait_contract::{
    budget::{Amount, Charge, Day, Limits},
    ids::RecordId,
    model::Usd,
    record::{Step, ToolKind},
};

use super::*;

fn line(run: &str, id: RecordId, phase: Phase, tokens: u64) -> Record {
    let charge = Some(Charge { day: Day(20_000), amount: Amount { calls: 1, tokens, usd: Usd(tokens) } });
    let step = Step { charge, ..Step::new("openai".into(), ToolKind::Model, Decision::Allow) };
    let record = log::record(Some(run.parse().unwrap()), Body::Trace(Box::new(step)));
    Record { id, phase: Some(phase), ..record }
}

/// What a gateway has recorded is what the next is told, calls that were under way at their worst; and a reset, whenever
/// it comes, reaches the one that is connected (A18, case 73).
#[tokio::test]
async fn a_gateway_is_told_what_the_records_of_earlier_ones_come_to_a18_case73() {
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let mut gateway = rig.greeted().await;
    gateway.next().await.unwrap();
    let (first, second) = (RecordId::now(), RecordId::now());
    let records = vec![
        line("r1", first, Phase::Decided, 100),
        line("r1", second, Phase::Decided, 100),
        line("r1", first, Phase::Done, 40),
    ];
    assert_eq!(gateway.recorded(1, records).await, None);
    drop(gateway);
    rig.link.gateway().wait_for(Option::is_none).await.unwrap();

    let mut gateway = rig.greeted().await;
    assert!(matches!(gateway.next().await, Some((ToGateway::RunStarted(_), _))));
    let Some((ToGateway::AgentUse(told), _)) = gateway.next().await else { panic!() };
    assert_eq!(told.agent.as_str(), "coder");
    assert_eq!((told.account.total.spent.tokens, told.account.total.held.tokens), (40, 100));
    let Some((ToGateway::RunUse(told), _)) = gateway.next().await else { panic!() };
    assert_eq!((told.run.as_str(), told.spent.tokens, told.spent.calls), ("r1", 140, 2));

    assert!(!rig.link.reset_budget("nobody".parse().unwrap(), "ann".into()).await.unwrap());
    assert!(rig.link.reset_budget("coder".parse().unwrap(), "ann".into()).await.unwrap());
    let Some((ToGateway::AgentUse(told), _)) = gateway.next().await else { panic!() };
    assert_eq!((told.account.total.spent.tokens, told.account.cleared.tokens), (0, 40));
    let host = rig.host_log();
    assert!(host.contains(
        r#""event":"budget.reset","facts":{"agent":"coder","by":"ann","calls":"1","tokens":"40","#
    ));
    assert!(rig.instance.state_dir.join("budget.json").exists(), "saved at once");
}

#[tokio::test]
async fn changed_budgets_reach_a_connected_gateway() {
    let rig = Rig::new(0);
    let mut gateway = rig.greeted().await;
    rig.link.set_budgets().await.unwrap();
    assert!(matches!(gateway.next().await, Some((ToGateway::Budgets(all), _)) if all.is_empty()));
    // The largest that a config may have fits a packet.
    let limits = Limits { calls: Some(u64::MAX), tokens: Some(u64::MAX), usd: Some(Usd(u64::MAX)) };
    let budget = Budget { run: limits, day: limits, total: limits };
    let all = (0..512).map(|n| (format!("{}{n:03}", "a".repeat(60)).parse().unwrap(), budget)).collect();
    Packet::new(&ToGateway::Budgets(all), Vec::new()).unwrap();
}
