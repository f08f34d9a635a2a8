//! How nodes join, and who does not.

use management::keys::{self, JoinToken};
use manager::model::WallTime;
use serde_json::json;

use crate::fabric::Fabric;
use crate::node::{ask_to_join, join_token, now};

#[tokio::test]
async fn a_node_joins_once_with_a_token_and_hears_the_same_when_it_asks_again() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let (word, key) = (join_token(admin).await, keys::new_pair());
    let token: JoinToken = word.parse().unwrap();
    assert_eq!(token.authority, fabric.config.authority().unwrap().fingerprint());
    assert_eq!(token.urls, fabric.config.urls);
    let joined = ask_to_join(admin, &word, "store", &key, now()).await.ok();
    assert_eq!((&joined["name"], &joined["domains"]), (&json!("store"), &json!("16/16")));
    assert_eq!(joined["fabric"], fabric.config.fabric.to_string());
    let mut again = ask_to_join(admin, &word, "store", &key, now()).await.ok();
    assert!(again["certificate"].is_string());
    // That is made anew each time.
    again["certificate"] = joined["certificate"].clone();
    assert_eq!(again, joined, "its answer was lost");
    let other = ask_to_join(admin, &word, "desk", &keys::new_pair(), now()).await.problem();
    assert!(other.0 == 401 && other.2.contains("each lets one join"), "{other:?}");
    let word = join_token(admin).await;
    let taken = ask_to_join(admin, &word, "store", &keys::new_pair(), now()).await.problem();
    assert!(taken.0 == 409 && taken.2.contains("choose another name"), "{taken:?}");
    let twice = ask_to_join(admin, &word, "other", &key, now()).await.problem();
    assert!(twice.0 == 409 && twice.2.contains("joined already as `store`"), "{twice:?}");
    admin.delete("/v1/nodes/store").await.ok();
    let removed = ask_to_join(admin, &word, "store", &key, now()).await.problem();
    assert!(removed.0 == 403 && removed.2.contains("new key"), "{removed:?}");
}

#[tokio::test]
async fn a_token_that_is_wrong_expired_or_taken_away_lets_nobody_in() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let key = keys::new_pair();
    let made = admin.post("/v1/join-tokens", json!({"seconds": 1})).await.ok();
    let word = made["token"].as_str().unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    let expired = ask_to_join(admin, word, "store", &key, now()).await.problem();
    assert!(expired.0 == 401 && expired.2.contains("has expired at"), "{expired:?}");
    let made = admin.post("/v1/join-tokens", json!({})).await.ok();
    admin.delete(&format!("/v1/join-tokens/{}", made["hash"].as_str().unwrap())).await.ok();
    let gone = ask_to_join(admin, made["token"].as_str().unwrap(), "store", &key, now()).await.problem();
    assert!(gone.0 == 401 && gone.2.contains("no such join token"), "{gone:?}");
    // A token for the interface lets nobody join, and a join token opens no interface.
    let word = join_token(admin).await;
    let token: JoinToken = word.parse().unwrap();
    assert_eq!(admin.with_token(&token.token.reveal()).get("/v1/nodes").await.problem().0, 401);
    let body = json!({"name": "a", "key": keys::public(&key).to_string(), "proof": "", "now": 0});
    assert_eq!(admin.post("/v1/join", body).await.problem().0, 401);
}

#[tokio::test]
async fn who_has_not_the_key_that_it_names_does_not_join() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let token: JoinToken = join_token(admin).await.parse().unwrap();
    let joiner = admin.with_token(&token.token.reveal());
    let join = |key: String, proof: &str| {
        let body = json!({"name": "a", "key": key, "proof": proof, "now": now().0});
        let joiner = joiner.clone();
        async move { joiner.post("/v1/join", body).await.problem() }
    };
    let public = keys::public(&keys::new_pair()).to_string();
    for proof in ["", "0", &"0".repeat(52)] {
        let wrong = join(public.clone(), proof).await;
        assert!([400, 401].contains(&wrong.0), "{wrong:?}");
    }
    let nobodys = join("0".repeat(52), &"0".repeat(52)).await;
    assert!(nobodys.0 == 401 && nobodys.2.contains("nobody's"), "{nobodys:?}");
    assert_eq!(join("x".to_owned(), "").await.0, 400);
    assert_eq!(admin.get("/v1").await.ok()["nodes"], 0);
}

#[tokio::test]
async fn a_clock_that_is_wrong_is_told_with_both_times() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let admin = &manager.client;
    let mut events = crate::agents::Followed::open(admin).await;
    let word = join_token(admin).await;
    ask_to_join(admin, &word, "store", &keys::new_pair(), WallTime(0)).await.ok();
    let event = events.called("clock").await;
    assert!(
        event["text"].as_str().unwrap().contains("1970-01-01T00:00:00Z, and the manager's 20"),
        "{event}"
    );
}
