use std::time::Duration;

use oncebox_core::store::{Claim, Commit, Connection, LaneBound, MoveLanes, ReadLanes, Registration, Token};
use oncebox_core::{ErrorKind, Kinds, LANES, Message, Store};

use crate::{LIMITS, SECOND, every_kind, fixture, moved, registration, text};

fn claim(handler: &str, token: i64) -> Claim<'_> {
    Claim { handler, token: Token(token), lanes: 32, limit: 7 }
}

#[tokio::test]
async fn a_claimed_lane_is_not_claimed_again_until_it_is_abandoned() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    fixture.receive(vec![text("a").key("k")]).await;
    let lanes = fixture.store.claim(&claim("h", 1)).await.unwrap();
    assert_eq!(lanes.len(), 1);
    assert_eq!(lanes[0].suspects, None);
    assert_eq!(fixture.store.claim(&claim("h", 2)).await.unwrap(), []);
    fixture.store.release("h", Token(9)).await.unwrap();
    assert_eq!(fixture.store.claim(&claim("h", 2)).await.unwrap(), []);
    fixture.store.release("h", Token(1)).await.unwrap();
    assert_eq!(fixture.store.claim(&claim("h", 2)).await.unwrap()[0].suspects, None);
    fixture.clock.advance(Duration::from_secs(4));
    let lanes = fixture.store.claim(&claim("h", 3)).await.unwrap();
    assert_eq!(lanes[0].suspects, Some(7));

    // The one that was thought dead comes back.
    let bound = [LaneBound { lane: lanes[0].lane, upto: None }];
    let read = ReadLanes {
        handler: "h",
        token: Token(2),
        lanes: &bound,
        limit: 10,
        kinds: &every_kind(),
        ordered: false,
        limits: LIMITS,
    };
    assert!(fixture.store.begin_lanes(&read).await.unwrap().is_none());
    let batch = fixture.store.begin_lanes(&ReadLanes { token: Token(3), ..read }).await.unwrap().unwrap();
    assert_eq!(batch.rows.len(), 1);
    batch.connection.rollback().await;
}

#[tokio::test]
async fn a_commit_by_another_token_is_fenced_and_keeps_nothing() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    fixture.receive(vec![text("a")]).await;
    let (mut tx, rows) = fixture.batch("h", Token(1)).await;
    sqlx::query("insert into effect (note) values ('mine')").execute(&mut *tx).await.unwrap();
    let error = fixture.store.commit(tx, moved("h", Token(2), &rows)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert_eq!(fixture.number("select count(*) from effect").await, 0);
}

#[tokio::test]
async fn a_committed_batch_moves_on_and_keep_keeps_the_mark() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    fixture.receive((0..100).map(|n| text(&n.to_string())).collect()).await;
    let (mut tx, rows) = fixture.batch("h", Token(1)).await;
    assert_eq!(rows.len(), 100);
    sqlx::query("insert into effect (note) values ('done')").execute(&mut *tx).await.unwrap();
    let mut commit = moved("h", Token(1), &rows);
    commit.lanes.as_mut().unwrap().keep = true;
    fixture.store.commit(tx, commit).await.unwrap();
    assert_eq!(fixture.number("select count(*) from effect").await, 1);
    fixture.receive(vec![text("later")]).await;
    assert_eq!(fixture.store.claim(&claim("h", 2)).await.unwrap(), []);
    fixture.store.release("h", Token(1)).await.unwrap();
    let (tx, rows) = fixture.batch("h", Token(2)).await;
    assert_eq!(rows.len(), 1);
    tx.rollback().await;
}

#[tokio::test]
async fn lanes_are_read_in_the_order_asked_for_up_to_their_bound_and_limit() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    let keys: Vec<String> = (0..).map(|n| n.to_string()).take(60).collect();
    let lane = |key: &str| oncebox_core::lane_of(key);
    let (first, second) = {
        let first = lane(&keys[0]);
        (first.max(lane(&keys[1])), first.min(lane(&keys[1])))
    };
    fixture.receive((0..20).map(|n| text(&format!("{n}")).key(&keys[n % 2])).collect()).await;
    fixture.store.claim(&claim("h", 1)).await.unwrap();
    let mut lanes = [LaneBound { lane: first, upto: None }, LaneBound { lane: second, upto: None }];
    let read = |lanes: [LaneBound; 2], limit| {
        let store = fixture.store.clone();
        async move {
            let kinds = every_kind();
            let read = ReadLanes {
                handler: "h",
                token: Token(1),
                lanes: &lanes,
                limit,
                kinds: &kinds,
                ordered: false,
                limits: LIMITS,
            };
            let batch = store.begin_lanes(&read).await.unwrap().unwrap();
            batch.connection.rollback().await;
            batch.rows.iter().map(|row| (row.lane, row.seq)).collect::<Vec<_>>()
        }
    };
    let rows = read(lanes, 15).await;
    assert_eq!(rows.len(), 15);
    assert!(rows[..10].iter().all(|row| row.0 == first) && rows[10..].iter().all(|row| row.0 == second));
    assert!(rows[..10].is_sorted() && rows[10..].is_sorted());
    lanes[0].upto = Some(rows[2].1);
    let rows = read(lanes, 100).await;
    assert_eq!(rows.iter().filter(|row| row.0 == first).count(), 3);
    assert_eq!(rows.len(), 13);
}

#[tokio::test]
async fn unwanted_kinds_come_without_their_content() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    fixture
        .receive(
            ["order.placed", "order.paid", "page.viewed", "pager", "page."]
                .map(|kind| Message::new(kind, "x"))
                .to_vec(),
        )
        .await;
    let mut kinds = Kinds::default();
    kinds.add("order.placed").unwrap();
    kinds.add("page.*").unwrap();
    let lanes: Vec<LaneBound> = fixture
        .store
        .claim(&claim("h", 1))
        .await
        .unwrap()
        .iter()
        .map(|claimed| LaneBound { lane: claimed.lane, upto: None })
        .collect();
    let read = ReadLanes {
        handler: "h",
        token: Token(1),
        lanes: &lanes,
        limit: 100,
        kinds: &kinds,
        ordered: false,
        limits: LIMITS,
    };
    let batch = fixture.store.begin_lanes(&read).await.unwrap().unwrap();
    let mut wanted: Vec<_> =
        batch.rows.iter().filter_map(|row| row.to_message()).map(|m| m.kind.clone()).collect();
    wanted.sort();
    assert_eq!(batch.rows.len(), 5);
    assert_eq!(wanted, ["order.placed", "page.", "page.viewed"]);
    batch.connection.rollback().await;
}

#[tokio::test]
async fn a_paused_handler_gets_no_lanes() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    fixture.receive(vec![text("a")]).await;
    assert!(fixture.store.set_paused("h", true).await.unwrap());
    assert!(!fixture.store.set_paused("unknown", true).await.unwrap());
    assert_eq!(fixture.store.claim(&claim("h", 1)).await.unwrap(), []);
    fixture.register("h", false).await;
    assert!(fixture.store.handlers().await.unwrap()[0].paused, "registering again does not resume");
    assert!(fixture.store.set_paused("h", false).await.unwrap());
    assert_eq!(fixture.store.claim(&claim("h", 1)).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_renamed_handler_keeps_its_place() {
    let fixture = fixture().await;
    fixture.register("old", false).await;
    fixture.receive(vec![text("a"), text("b")]).await;
    let (tx, rows) = fixture.batch("old", Token(1)).await;
    fixture.store.commit(tx, moved("old", Token(1), &rows)).await.unwrap();
    let renamed = Registration { formerly: vec!["older".into(), "old".into()], ..registration("new", false) };
    fixture.store.register(std::slice::from_ref(&renamed)).await.unwrap();
    fixture.store.register(std::slice::from_ref(&renamed)).await.unwrap();
    assert_eq!(fixture.store.claim(&claim("new", 1)).await.unwrap(), []);
    let handlers = fixture.store.handlers().await.unwrap();
    assert_eq!(handlers.len(), 1);
    assert_eq!((handlers[0].name.as_str(), handlers[0].waiting, handlers[0].kinds.len()), ("new", 0, 1));

    fixture.register("old", false).await;
    let error = fixture.store.register(&[renamed]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("`new`") && error.to_string().contains("`old`"), "{error}");
    assert!(fixture.store.forget("old").await.unwrap());
    assert!(!fixture.store.forget("old").await.unwrap());
    assert_eq!(fixture.number("select count(*) from oncebox_cursor").await, i64::from(LANES));
}

#[tokio::test]
async fn a_new_handler_starts_at_the_head_unless_told() {
    let fixture = fixture().await;
    fixture.receive(vec![text("before")]).await;
    let head = Registration { from_start: false, ..registration("head", false) };
    fixture.store.register(&[head, registration("start", false)]).await.unwrap();
    fixture.clock.advance(SECOND);
    let handlers = fixture.store.handlers().await.unwrap();
    assert_eq!((handlers[0].waiting, handlers[0].lag), (0, None));
    assert_eq!((handlers[1].waiting, handlers[1].waiting_is_exact), (1, true));
    assert!(handlers[1].lag.unwrap() >= SECOND);
    assert_eq!(fixture.store.claim(&claim("head", 1)).await.unwrap(), []);
    assert_eq!(fixture.store.claim(&claim("start", 1)).await.unwrap().len(), 1);
}

#[tokio::test]
async fn lanes_served_longest_ago_come_first() {
    let fixture = fixture().await;
    fixture.register("h", false).await;
    fixture.receive((0..200).map(|n| text(&n.to_string())).collect()).await;
    let mut served = Vec::new();
    for token in 0..32 {
        let one = fixture.store.claim(&Claim { lanes: 1, ..claim("h", token) }).await.unwrap()[0].lane;
        fixture.store.release("h", Token(token)).await.unwrap();
        served.push(one);
        fixture.clock.advance(Duration::from_millis(5));
    }
    served.sort();
    assert_eq!(served, (0..32).collect::<Vec<u16>>());
}

#[tokio::test]
async fn moving_no_lane_is_allowed_and_a_plain_commit_commits() {
    let fixture = fixture().await;
    let mut tx = fixture.store.begin_plain(LIMITS).await.unwrap();
    sqlx::query("insert into effect (note) values ('plain')").execute(&mut *tx).await.unwrap();
    let lanes = MoveLanes { handler: "h".into(), token: Token(1), positions: vec![], keep: false };
    fixture.store.commit(tx, Commit { lanes: Some(lanes), ..Commit::default() }).await.unwrap();
    assert_eq!(fixture.number("select count(*) from effect").await, 1);
}
