use strait_contract::{
    approval::{Answer, CallDigest, Content, Held, PIECE, Shown},
    ids::RecordId,
};

use super::*;
use crate::{
    approval::{Scope, view::ApprovalView},
    run::account::Account,
};

fn held(run: &str, bytes: usize) -> Held {
    let content = Content { bytes: u64::try_from(bytes).unwrap(), digest: CallDigest([2; 32]) };
    Held {
        call: RecordId::now(),
        run: run.parse().unwrap(),
        digest: CallDigest([1; 32]),
        rules: vec!["ask".into()],
        why: "why".into(),
        timeout_seconds: Some(60),
        shown: Shown { action: "POST".into(), content: Some(content), ..Shown::default() },
    }
}

impl FakeGateway {
    async fn asks(&self, held: &Held, pieces: &[usize]) {
        let piece = |bytes| ToAgent::HeldPiece { call: held.call, bytes: vec![b'x'; bytes] };
        let messages = pieces.iter().copied().map(piece).chain([ToAgent::Held(Box::new(held.clone()))]);
        for message in messages {
            let packet = seqpacket::encode(&message).unwrap();
            while let Err(error) = seqpacket::send(self.0.as_fd(), &packet, &[]) {
                assert!(error.would_block(), "{error}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn answer(&mut self) -> (RecordId, Answer) {
        match self.next().await {
            Some((ToGateway::Answer { call, answer }, _)) => (call, answer),
            other => panic!("{other:?}"),
        }
    }
}

impl Rig {
    async fn prompts(&self, count: usize) -> Vec<ApprovalView> {
        for _ in 0..1000 {
            let all = self.link.0.parts.approvals.list().await.unwrap();
            if all.iter().filter(|prompt| prompt.is_open()).count() == count {
                return all;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{count} prompts did not come");
    }
}

#[tokio::test]
async fn a_call_that_waits_comes_whole_and_its_answer_goes_back_to_who_asked() {
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let mut gateway = rig.greeted().await;
    gateway.next().await.unwrap();
    let asked = held("r1", PIECE + 5);
    gateway.asks(&asked, &[PIECE, 5]).await;
    let open = rig.prompts(1).await;
    assert_eq!((open[0].run.as_str(), open[0].agent.as_str(), open[0].user.as_str()), ("r1", "coder", "ann"));
    let approvals = rig.link.0.parts.approvals.clone();
    let whole = approvals.show(&open[0].id.parse().unwrap()).await.unwrap();
    assert_eq!(whole.content.map(|text| text.len()), Some(PIECE + 5));
    let root = Account::of(0, 0).unwrap();
    approvals.approve(open[0].id.parse().unwrap(), Scope::Times(1), root).await.unwrap();
    let (call, answer) = gateway.answer().await;
    assert!(call == asked.call && matches!(answer, Answer::Granted(_)), "{answer:?}");
    let text = fs::read_to_string(rig.dir.path().join("state/runs/r1/log.jsonl")).unwrap();
    let events: Vec<_> = text.lines().map(|line| line.contains("call.held")).collect();
    assert_eq!(events, [true, false], "held, then granted: {text}");
    assert!(text.contains("approval.granted") && text.contains(&asked.call.to_string()));
}

#[tokio::test]
async fn a_gateway_asks_for_live_runs_and_what_it_sends_whole_and_nothing_else() {
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let mut gateway = rig.greeted().await;
    gateway.next().await.unwrap();
    let other = RecordId::now();
    for (asked, pieces) in [
        (held("nobody", 0), vec![]),
        (held("r1", 10), vec![9]),
        (held("r1", 0), vec![1]),
        (held("r1", PIECE + 1), vec![PIECE + 1]),
        (held("r1", 17 * PIECE), vec![PIECE; 17]),
    ] {
        gateway.send(&ToAgent::HeldPiece { call: other, bytes: vec![0; 3] });
        gateway.asks(&asked, &pieces).await;
        let (call, answer) = gateway.answer().await;
        assert!(call == asked.call && matches!(answer, Answer::Unavailable(_)), "{pieces:?}: {answer:?}");
    }
    assert!(rig.prompts(0).await.is_empty());
    gateway.asks(&held("r1", 16 * PIECE), &[PIECE; 16]).await;
    rig.prompts(1).await;
}

#[tokio::test]
async fn what_waits_ends_with_its_run_its_gateway_or_its_call() {
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let mut gateway = rig.greeted().await;
    gateway.next().await.unwrap();
    let asked = held("r1", 0);
    gateway.asks(&asked, &[]).await;
    rig.prompts(1).await;
    gateway.send(&ToAgent::Withdrawn { call: asked.call });
    gateway.send(&ToAgent::Withdrawn { call: RecordId::now() });
    for _ in 0..1000 {
        if rig.prompts(1).await[0].waiting == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(rig.prompts(1).await[0].waiting, 0, "the prompt stays for a retry");
    gateway.asks(&held("r1", 0), &[]).await;
    drop(gateway);
    let over = rig.prompts(0).await;
    assert!(over[0].state.contains("gateway"), "{over:?}");
    let mut gateway = rig.greeted().await;
    gateway.next().await.unwrap();
    let asked = held("r1", 0);
    gateway.asks(&asked, &[]).await;
    rig.prompts(1).await;
    drop(rig.link.run_ended(&"r1".parse().unwrap()));
    rig.prompts(0).await;
    assert!(matches!(gateway.next().await, Some((ToGateway::RunEnded(_), _))));
    assert!(matches!(gateway.answer().await, (call, Answer::Unavailable(_)) if call == asked.call));
}
