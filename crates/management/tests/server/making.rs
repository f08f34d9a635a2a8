//! Functions that are made at nodes while they run, and deleted.

use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::Node;

#[tokio::test]
async fn a_function_is_made_assigned_kept_while_it_is_used_and_deleted() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let mut store = Node::join(admin, "store", 1).await;
    let mut lender = store.connect(admin).await;
    lender.presets(0).await;
    let mut desk = Node::join(admin, "desk", 0).await;
    desk.has("", "vm", &["disk"]);
    let mut borrower = desk.connect(admin).await;
    borrower.presets(0).await;
    let path = "/v1/functions/store/fast";
    let body = json!({"device": "data", "storage": {"bytes": 1 << 20}, "iops": 100});
    let ask = |method: &'static str, body: Value| {
        let admin = admin.clone();
        tokio::spawn(async move {
            match method {
                "PUT" => admin.put(path, body).await,
                _ => admin.delete(path).await,
            }
        })
    };
    let asked = ask("PUT", body.clone());
    let list = store.make_functions(&mut lender, |_| None).await;
    let made = &list.functions[0];
    assert_eq!((made.name.as_str(), made.shape.device.as_str()), ("fast", "data"));
    assert_eq!(made.shape.limits.iops.unwrap().get(), 100);
    assert_eq!(asked.await.unwrap().ok()["progress"], "done");
    let function = admin.get(path).await.ok();
    assert_eq!((&function["made_on"], &function["state"]), (&json!("data"), &json!("free")));
    // As it is already, and otherwise.
    assert_eq!(admin.put(path, body).await.ok()["index"], Value::Null);
    let other = admin.put(path, json!({"device": "data", "storage": {"namespace": "all"}})).await.problem();
    assert!(other.0 == 409 && other.2.contains("made otherwise"), "{other:?}");
    let assignment = format!("{path}/assignment");
    let assigned = tokio::spawn({
        let (admin, assignment) = (admin.clone(), assignment.clone());
        async move { admin.put(&assignment, json!({"slot": "desk/vm/disk"})).await }
    });
    store.serve_orders(&mut lender).await;
    assert_eq!(assigned.await.unwrap().ok()["progress"], "done");
    let used = admin.delete(path).await.problem();
    assert!(used.0 == 409 && used.2.contains("of desk") && used.2.contains("unassign it first"), "{used:?}");
    let taken = tokio::spawn({
        let admin = admin.clone();
        async move { admin.delete(&assignment).await }
    });
    store.serve_orders(&mut lender).await;
    assert_eq!(taken.await.unwrap().ok()["progress"], "done");
    let asked = ask("DELETE", Value::Null);
    assert!(store.make_functions(&mut lender, |_| None).await.functions.is_empty());
    assert_eq!(asked.await.unwrap().ok()["progress"], "done");
    assert_eq!(admin.get(path).await.problem().0, 404);
    let gone = admin.delete(path).await.problem();
    assert!(gone.0 == 404 && gone.2.contains("lends no `fast`"), "{gone:?}");
    let audit = admin.get("/v1/audit?limit=1000").await.ok().to_string();
    for what in ["make function store/fast with 1048576 bytes of data", "delete function store/fast"] {
        assert!(audit.contains(what), "{audit}");
    }
}

#[tokio::test]
async fn what_cannot_be_made_is_told_in_the_lenders_words_and_a_silent_lender_leaves_it_pending() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let mut store = Node::join(admin, "store", 1).await;
    let mut lender = store.connect(admin).await;
    lender.presets(0).await;
    let path = "/v1/functions/store/huge";
    let body = json!({"device": "data", "storage": {"bytes": 1_u64 << 60}});
    let asked = tokio::spawn({
        let (admin, body) = (admin.clone(), body.clone());
        async move { admin.put(path, body).await }
    });
    store.make_functions(&mut lender, |_| Some("the device data lacks room".to_owned())).await;
    let refused = asked.await.unwrap().problem();
    assert!(
        refused.0 == 409 && refused.2 == "huge cannot be made: the device data lacks room",
        "{refused:?}"
    );
    let making = admin.get("/v1/nodes/store").await.ok()["making"].clone();
    assert_eq!(
        making,
        json!([{"function": "huge", "state": "refused", "why": "the device data lacks room"}])
    );
    assert!(
        store.make_functions(&mut lender, |_| None).await.functions.is_empty(),
        "it is not wanted any more"
    );
    for (body, word) in [
        (json!({"device": "data"}), "missing field `storage`"),
        (json!({"device": "data", "storage": {"bytes": 0}}), "`bytes` is 1 to"),
        (
            json!({"device": "data", "storage": {"bytes": 1, "namespace": "a"}}),
            "the document is not as it has to be",
        ),
        (json!({"device": "../data", "storage": {"bytes": 512}}), "is no name"),
        (json!({"device": "data", "storage": {"bytes": 512}, "iops": 0}), "`iops`"),
        (json!({"device": "data", "storage": {"bytes": 512}, "group": 4095}), "from 1 to 4094"),
    ] {
        let problem = admin.put(path, body).await.problem();
        assert!(problem.0 == 400 && problem.2.contains(word), "{word}: {problem:?}");
    }
    let taken = admin.put("/v1/functions/store/nvme0", body.clone()).await.problem();
    assert!(taken.0 == 409 && taken.2.contains("by its node's configuration"), "{taken:?}");
    assert_eq!(admin.put("/v1/functions/stroe/fast", body.clone()).await.problem().0, 404);
    let own = admin.delete("/v1/functions/store/nvme0").await.problem();
    assert!(own.0 == 409 && own.2.contains("take it out of the file"), "{own:?}");
    drop(lender);
    let pending = loop {
        let answer = admin.put(path, body.clone()).await;
        assert_eq!(answer.status, 202);
        let answer = answer.ok();
        if answer["is_silent"] == true {
            break answer;
        }
    };
    assert_eq!(pending["waits_for"], "store");
}
