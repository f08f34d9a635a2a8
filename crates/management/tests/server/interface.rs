//! Lists, tokens, conditions, and what is malformed.

use serde_json::{Value, json};

use crate::client::Client;
use crate::fabric::Fabric;
use crate::node::{Node, ask_to_join, join_token, now};

/// Somebody with this role.
async fn somebody(admin: &Client, name: &str, role: &str) -> Client {
    let made = admin.post("/v1/tokens", json!({"name": name, "role": role})).await.ok();
    admin.with_token(made["token"].as_str().unwrap())
}

fn names(page: &Value) -> Vec<&str> {
    page["items"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_new_fabric_says_what_it_is() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let document = manager.client.get("/v1").await.ok();
    assert_eq!(document["fabric"], fabric.config.fabric.to_string());
    assert_eq!((&document["epoch"], &document["nodes"]), (&json!(1), &json!(0)));
    let health = manager.client.with_token("").get("/healthz").await;
    assert_eq!((health.status, health.text.as_str()), (200, "ok\n"));
    let metrics = manager.client.with_token("").get("/metrics").await;
    for line in ["causeway_manager_epoch 1", "causeway_manager_nodes 0", "causeway_manager_log_bytes"] {
        assert!(metrics.text.contains(line), "{line}: {}", metrics.text);
    }
    manager.stop().await.unwrap();
    let again = fabric.start().await;
    assert_eq!(again.client.get("/v1").await.ok()["epoch"], 2);
}

#[tokio::test]
async fn each_role_may_do_what_it_may_and_a_token_that_is_gone_nothing() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let eye = somebody(admin, "eye", "read-only").await;
    let op = somebody(admin, "op", "operator").await;
    assert_eq!(names(&eye.get("/v1/tokens").await.ok()), ["admin", "eye", "op"]);
    let refused = eye.delete("/v1/functions/a/b/assignment").await.problem();
    assert_eq!((refused.0, refused.1.as_str()), (403, "forbidden"), "{}", refused.2);
    assert_eq!(op.delete("/v1/functions/a/b/assignment").await.problem().0, 404);
    for path in ["/v1/nodes/a", "/v1/tokens/eye"] {
        assert_eq!(op.delete(path).await.problem().0, 403, "{path}");
    }
    assert_eq!(op.get("/v1/backup").await.problem().0, 403);
    let last = admin.delete("/v1/tokens/admin").await.problem();
    assert!(last.0 == 409 && last.2.contains("last administrator"), "{last:?}");
    admin.delete("/v1/tokens/eye").await.ok();
    for client in [eye, admin.with_token("cwt_0"), admin.with_token("")] {
        let answer = client.get("/v1/nodes").await;
        assert_eq!((answer.problem().1.as_str(), answer.status), ("unauthorized", 401));
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
    }
}

#[tokio::test]
async fn lists_come_in_pages_and_are_filtered() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    for name in ["store", "desk", "rack-1", "rack"] {
        let node = Node::join(admin, name, 3).await;
        let mut agent = node.connect(admin).await;
        // It is told what it has, so its inventory was heard.
        agent.presets(0).await;
    }
    let first = admin.get("/v1/nodes?limit=3").await.ok();
    assert_eq!((names(&first), &first["next"]), (vec!["desk", "rack", "rack-1"], &json!("rack-1")));
    let rest = admin.get("/v1/nodes?limit=3&after=rack-1").await.ok();
    assert_eq!((names(&rest), &rest["next"]), (vec!["store"], &Value::Null));
    let exact = admin.get("/v1/nodes?limit=4").await.ok();
    assert_eq!(exact["next"], Value::Null, "there are no more");
    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let page = admin.get(&format!("/v1/functions?limit=5&after={after}")).await.ok();
        seen.extend(names(&page).into_iter().map(str::to_owned));
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut after),
            None => break,
        }
    }
    assert_eq!(seen.len(), 12);
    assert_eq!(seen[3..6], ["rack/nvme0", "rack/nvme1", "rack/nvme2"]);
    let one = admin.get("/v1/functions?node=store&number=1&state=free").await.ok();
    assert_eq!(names(&one), ["store/nvme1"]);
    assert!(names(&admin.get("/v1/functions?state=applied").await.ok()).is_empty());
    // A text that is a part of another one, that is another field's, or that is quoted.
    for none in ["name=store/nvme", "kind=free", "state=%22free%22", "name=", "name=%22"] {
        assert!(names(&admin.get(&format!("/v1/functions?{none}")).await.ok()).is_empty(), "{none}");
    }
    assert_eq!(names(&admin.get("/v1/functions?read_only=false&limit=1000").await.ok()).len(), 12);
    assert!(names(&admin.get("/v1/loans").await.ok()).is_empty());
    assert_eq!(names(&admin.get("/v1/nodes?groups=1").await.ok()).len(), 4);
    let wrong = admin.get("/v1/functions?stat=free").await.problem();
    assert!(wrong.0 == 400 && wrong.2.ends_with("did you mean `state`?"), "{wrong:?}");
    for limit in ["0", "1001", "x", "-1"] {
        assert_eq!(admin.get(&format!("/v1/nodes?limit={limit}")).await.problem().0, 400, "{limit}");
    }
    let unknown = admin.get("/v1/nodes/stroe").await.problem();
    assert_eq!((unknown.0, unknown.2.as_str()), (404, "there is no node `stroe`; did you mean `store`?"));
    let unknown = admin.get("/v1/functions/store/nvme").await.problem();
    assert!(unknown.0 == 404 && unknown.2.contains("did you mean"), "{unknown:?}");
    let audit = admin.get("/v1/audit?who=admin&limit=2").await.ok();
    assert_eq!(audit["items"].as_array().unwrap().len(), 2);
    assert!(audit["items"][0]["what"].as_str().unwrap().starts_with("make join token"), "{audit}");
}

#[tokio::test]
async fn a_field_that_no_row_has_is_told_also_where_there_are_no_rows() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    for list in ["nodes", "functions", "domains", "loans", "join-tokens", "tokens", "audit"] {
        let wrong = manager.client.get(&format!("/v1/{list}?nonsense=1")).await.problem();
        assert!(wrong.0 == 400 && wrong.2.contains("nonsense"), "{list}: {wrong:?}");
    }
    assert!(names(&manager.client.get("/v1/nodes?state=silent&program=").await.ok()).is_empty());
}

#[tokio::test]
async fn a_token_of_a_name_that_is_taken_is_made_by_who_says_so_only() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let eye = somebody(admin, "eye", "read-only").await;
    let again = json!({"name": "eye", "role": "operator"});
    let refused = admin.post("/v1/tokens", again).await.problem();
    assert!(refused.0 == 409 && refused.2.contains("--replace"), "{refused:?}");
    eye.get("/v1").await.ok();
    admin.post("/v1/tokens", json!({"name": "eye", "role": "operator", "replace": true})).await.ok();
    assert_eq!(eye.get("/v1").await.problem().0, 401);
}

/// The clock was fast when the last entry was made, or is slow now: nobody knows which, so both times are told, and
/// nodes and clients can connect by either.
#[tokio::test]
async fn a_clock_that_is_behind_the_log_is_told_with_both_times() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    assert_eq!(manager.client.get("/v1").await.ok()["alarms"], json!([]));
    manager.stop().await.unwrap();
    let (mut store, opened) =
        management::store::Store::open(&fabric.config.state, fabric.config.fabric).unwrap();
    let at = manager::model::WallTime(crate::node::now().0 + 400 * 86_400_000);
    let epoch = opened.state.epoch() + 1;
    let change = manager::entry::Change::EpochBegun { epoch, restored: false, any_time: false };
    let who = manager::entry::Who::Manager;
    store.append(&[manager::entry::Entry { at, who, request: None, change }]).unwrap();
    store.close().unwrap();
    let manager = fabric.start().await;
    let alarms = manager.client.get("/v1").await.ok()["alarms"].clone();
    let alarm = alarms[0].as_str().unwrap();
    let now = crate::node::now().to_string();
    assert!(alarm.contains(&at.to_string()) && alarm.contains(&now[..10]), "{alarm}");
    // An hour is an hour, and a node joins within it.
    manager.client.post("/v1/join-tokens", json!({"seconds": 3600})).await.ok();
    Node::join(&manager.client, "desk", 0).await;
}

#[tokio::test]
async fn a_change_on_a_condition_is_made_to_that_version_only() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    Node::join(admin, "store", 0).await;
    let tag = admin.get("/v1/nodes/store").await.headers["etag"].to_str().unwrap().to_owned();
    let groups = |tag: String| async move {
        let body = json!({"groups": [1, 2]}).to_string();
        admin.call("PUT", "/v1/nodes/store/groups", &[("if-match", &tag)], &body).await
    };
    assert_eq!(groups(tag.clone()).await.ok()["progress"], "done");
    let stale = groups(tag.clone()).await.problem();
    assert_eq!((stale.0, stale.1.as_str()), (412, "stale"), "{}", stale.2);
    assert_eq!(admin.get("/v1/nodes/store").await.ok()["groups"], json!([1, 2]));
    for tag in ["x17", "+17", "\"+17\"", "\"17"] {
        assert_eq!(groups(tag.to_owned()).await.problem().0, 400, "{tag}");
    }
    assert_eq!(groups("17".to_owned()).await.problem().0, 412, "without quotes it is clear, too");
    let body = json!({"name": "x", "role": "operator"}).to_string();
    let none = admin.call("POST", "/v1/tokens", &[("if-match", &tag)], &body).await.problem();
    assert!(none.0 == 400 && none.2.contains("no versions"), "{none:?}");
}

#[tokio::test]
async fn a_request_that_comes_again_is_done_once_and_answered_the_same() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let id = [("idempotency-key", "0123456789abcdefghjkmnpqr0")];
    let ask = |body: Value| {
        let body = body.to_string();
        async move { admin.call("POST", "/v1/join-tokens", &id, &body).await }
    };
    let first = ask(json!({"domains": 16})).await.ok();
    let again = ask(json!({"domains": 16})).await.ok();
    assert_eq!(first, again);
    assert_eq!(admin.get("/v1/join-tokens").await.ok()["items"].as_array().unwrap().len(), 1);
    let other = ask(json!({"domains": 32})).await.problem();
    assert!(other.0 == 409 && other.2.contains("under this id"), "{other:?}");
    let wrong = admin.call("POST", "/v1/tokens", &[("idempotency-key", "1")], "{}").await.problem();
    assert!(wrong.0 == 400 && wrong.2.contains("Idempotency-Key"), "{wrong:?}");
}

#[tokio::test]
async fn what_is_malformed_is_named_and_harms_nobody() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let long = format!("{{\"name\": \"{}\"}}", "x".repeat(100_000));
    let deep = "[".repeat(50_000);
    let cases: [(&str, &str, &str, u16, &str); 22] = [
        ("POST", "/v1/tokens", "", 400, "EOF"),
        ("POST", "/v1/tokens", "{", 400, "EOF"),
        ("POST", "/v1/tokens", "\u{0}\u{1}", 400, "expected `{`"),
        ("POST", "/v1/tokens", r#"{"name": "a", "role": "operator", "more": 1}"#, 400, "more"),
        ("POST", "/v1/tokens", r#"{"name": "a b", "role": "operator"}"#, 400, "is no name"),
        ("POST", "/v1/tokens", r#"{"name": "a", "role": "king"}"#, 400, "a role is"),
        ("POST", "/v1/tokens", &long, 413, "65536 bytes"),
        ("POST", "/v1/tokens", &deep, 400, "expected `{`"),
        ("POST", "/v1/join-tokens", r#"{"domains": 3}"#, 400, "power of two"),
        ("POST", "/v1/join-tokens", r#"{"groups": [0]}"#, 400, "group"),
        ("PUT", "/v1/functions/a/b/assignment", r#"{"slot": "a"}"#, 400, "is no slot"),
        ("PUT", "/v1/functions/a/b/assignment", r#"{"slot": "a/b", "on_silence": "x"}"#, 400, "hold("),
        (
            "PUT",
            "/v1/functions/a/b/assignment",
            r#"{"slot": "a/b", "on_silence": "hold(2592001)"}"#,
            400,
            "2592000",
        ),
        ("PUT", "/v1/functions/a/b/assignment", r#"{"slot": "a/b", "group": 0}"#, 400, "1 to 4094"),
        ("PUT", "/v1/functions/a/b/assignment", r#"{"slot": "a/b", "group": 4095}"#, 400, "1 to 4094"),
        ("POST", "/v1/join-tokens", "[null, null]", 400, "expected `{`"),
        ("POST", "/v1/join-tokens", r#"{"seconds": 0}"#, 400, "1 to"),
        ("POST", "/v1/join-tokens", r#"{"seconds": 1.5}"#, 400, "floating point"),
        ("DELETE", "/v1/tokens/%ff", "", 400, "UTF-8"),
        ("GET", "/v1/agent", "", 400, "a WebSocket"),
        ("PATCH", "/v1/tokens", "", 405, "no such method"),
        ("GET", "/v2", "", 404, "no such path"),
    ];
    for (method, path, body, status, told) in cases {
        let problem = admin.call(method, path, &[], body).await.problem();
        assert_eq!(problem.0, status, "{method} {path}: {problem:?}");
        assert!(problem.2.contains(told), "{method} {path}: {problem:?}");
    }
    for path in ["/v1/nodes/%00", "/v1/nodes/%ff", "/v1/nodes/..%2f..", "/v1/nodes?limit=1&limit=x"] {
        let status = admin.get(path).await.status;
        assert!((400..500).contains(&status), "{path}: {status}");
    }
    admin.get("/v1").await.ok();
}

#[tokio::test]
async fn connections_that_say_nothing_or_nonsense_keep_nobody_out() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut fabric = Fabric::found();
    fabric.config.connections = 40;
    let manager = fabric.start().await;
    let admin = &manager.client;
    let mut silent = Vec::new();
    for said in
        [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0x16, 3, 1, 0xff], &[0xff; 4096]].iter().cycle().take(32)
    {
        let mut stream = tokio::net::TcpStream::connect(admin.address).await.unwrap();
        stream.write_all(said).await.unwrap();
        silent.push(stream);
    }
    for said in [
        &b"\r\n\r\n"[..],
        b"GET",
        b"GET /v1 HTTP/9.9\r\n\r\n",
        b"POST /v1/tokens HTTP/1.1\r\ncontent-length: 9\r\n",
    ] {
        let mut stream = admin.connect().await.unwrap();
        stream.write_all(said).await.unwrap();
        admin.get("/v1").await.ok();
    }
    // Who speaks no TLS is told so, and gone.
    let mut answer = Vec::new();
    silent[1].read_to_end(&mut answer).await.unwrap();
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[tokio::test]
async fn the_interface_describes_itself() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let document = manager.client.with_token("").get("/v1/openapi.json").await.ok();
    let paths = document["paths"].as_object().unwrap();
    // The table at the head of the shapes, and what is there beside it.
    for path in ["/v1", "/v1/functions/{node}/{function}/assignment", "/v1/join", "/v1/events", "/healthz"] {
        assert!(paths.contains_key(path), "{path}");
    }
    assert_eq!(paths.len(), 25);
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for schema in ["Problem", "Node", "Page_Node", "Assign", "Event"] {
        assert!(schemas.contains_key(schema), "{schema}: {:?}", schemas.keys());
    }
}

/// Who, what, and what came of it, of all that was refused.
async fn refusals(admin: &Client) -> Vec<[String; 3]> {
    let audit = admin.get("/v1/audit?limit=1000").await.ok();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    let rows = audit["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| ["who", "what", "result"].map(|it| text(row, it)));
    rows.filter(|[_, _, result]| result.starts_with("refused")).collect()
}

#[tokio::test]
async fn who_was_refused_what_is_in_the_audit_and_a_loop_is_a_few_rows() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let store = Node::join(admin, "store", 1).await;
    let mut agent = store.connect(admin).await;
    agent.presets(0).await;
    let eye = somebody(admin, "eye", "read-only").await;
    assert_eq!(eye.delete("/v1/nodes/store").await.status, 403);
    let stale = admin.call("DELETE", "/v1/nodes/store", &[("if-match", "\"1\"")], "").await;
    assert_eq!(stale.status, 412);
    assert_eq!(admin.post("/v1/tokens", json!({"name": "eye", "role": "operator"})).await.status, 409);
    // Of nobody that is known, and what is only mistyped.
    assert_eq!(admin.with_token("cwt_none").delete("/v1/nodes/store").await.status, 401);
    assert_eq!(admin.delete("/v1/nodes/stroe").await.status, 404);
    let word = join_token(admin).await;
    let taken = ask_to_join(admin, &word, "store", &management::keys::new_pair(), now()).await;
    assert_eq!(taken.status, 409);
    let all = refusals(admin).await;
    let row = |at: usize| (all[at][0].as_str(), all[at][1].as_str());
    assert_eq!((row(0), row(1)), (("eye", "remove node store"), ("admin", "remove node store")));
    assert!(all[0][2].contains("administrator") && all[1][2].contains("look again"), "{all:?}");
    assert_eq!(row(2), ("admin", "make token eye operator"));
    assert!(all[3][0].starts_with("join token") && all[3][1].starts_with("join as store"), "{all:?}");
    assert_eq!(all.len(), 4);
    for _ in 0..200 {
        eye.delete("/v1/nodes/store").await;
    }
    assert_eq!(refusals(admin).await.len(), 4);
    // Who was removed and comes again.
    admin.delete("/v1/nodes/store").await.ok();
    let mut again = store.greet(admin, now()).await;
    again.refused().await;
    let last = refusals(admin).await.pop().unwrap();
    assert_eq!((last[0].as_str(), last[1].as_str()), ("node store", "connect"), "{last:?}");
    // It is durable, as all that is shown.
    manager.kill().await;
    let manager = fabric.start().await;
    assert_eq!(refusals(&manager.client).await.len(), 5);
}
