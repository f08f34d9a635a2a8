//! The client of the command line, against a manager with nodes.

use management::client::{Client, ClientError, Credentials, Target, Told};
use management::shapes::{
    ApiToken, Assign, Audit, Changed, Domain, Fabric as About, Function, Loan, Node as Shown,
};

use crate::fabric::Fabric;
use crate::node::Node;

/// What is asked while nodes and manager go on: the client blocks.
async fn asked<T: Send + 'static>(
    credentials: &Credentials,
    ask: impl FnOnce(&mut Client) -> Result<T, ClientError> + Send + 'static,
) -> Result<T, ClientError> {
    let credentials = credentials.clone();
    // A runtime of its own lies in the client, which has to end where it began.
    let asking = tokio::task::spawn_blocking(move || ask(&mut Client::new(&credentials)?));
    asking.await.unwrap()
}

fn assignment() -> Target {
    Target::new(["functions", "store", "nvme1", "assignment"])
}

#[tokio::test]
async fn what_the_command_line_asks_the_manager_answers() {
    let fabric = Fabric::found();
    let manager = fabric.start().await;
    let mut credentials = Credentials::load(&fabric.home().join("fabric/admin.toml")).unwrap();
    credentials.url = format!("https://{}", manager.client.address);
    let mut store = Node::join(&manager.client, "store", 3).await;
    let mut desk = Node::join(&manager.client, "desk", 0).await;
    store.has("10.0.0.1:7411", "none", &[]);
    desk.has("10.0.0.2:7411", "vm1", &["disk", "more"]);
    let mut lender = store.connect(&manager.client).await;
    let mut borrower = desk.connect(&manager.client).await;
    borrower.presets(0).await;
    lender.presets(0).await;

    // Every document is what the client takes it for.
    let all = asked(&credentials, |client| {
        let nodes: Vec<Shown> = client.list(&Target::new(["nodes"]))?;
        let free: Vec<Function> = client.list(&Target::new(["functions"]).with("state", "free"))?;
        let domains: Vec<Domain> = client.list(&Target::new(["domains"]).with("node", "desk"))?;
        let tokens: Vec<ApiToken> = client.list(&Target::new(["tokens"]))?;
        let audit: Vec<Audit> = client.list(&Target::new(["audit"]))?;
        let about: About = client.get(&Target::new([]))?;
        Ok((nodes.len(), free.len(), domains[0].slots.len(), tokens.len(), audit.is_empty(), about.reachable))
    });
    assert_eq!(all.await.unwrap(), (2, 3, 2, 1, false, 2));

    let body = Assign { slot: "vm1/disk".to_owned(), group: None, on_silence: Some("remove".to_owned()) };
    let again = body.clone();
    let assign = asked(&credentials, move |client| client.put::<Changed>(&assignment(), &body));
    let (changed, orders) = tokio::join!(assign, store.serve_orders(&mut lender));
    let changed = changed.unwrap();
    assert_eq!((changed.progress.as_str(), changed.generation, orders.len()), ("done", Some(1), 1));
    let repeated =
        asked(&credentials, move |client| client.put::<Changed>(&assignment(), &again)).await.unwrap();
    assert_eq!((repeated.progress.as_str(), repeated.index), ("done", None), "it was so already");
    let loan =
        asked(&credentials, |client| client.get::<Loan>(&Target::new(["loans", "store", "nvme1"]))).await;
    let loan = loan.unwrap();
    assert_eq!((loan.slot.as_str(), loan.on_silence.as_str()), ("desk/vm1/disk", "remove"));
    let wrong =
        asked(&credentials, |client| client.get::<Function>(&Target::new(["functions", "stroe", "x"])));
    assert!(wrong.await.unwrap_err().to_string().contains("did you mean `store`?"));

    // A lender that is silent, and events of its going.
    let events = asked(&credentials, |client| {
        let mut events = client.events();
        client.run(async {
            loop {
                if let Told::Event(event) = events.next().await? {
                    return Ok(event);
                }
            }
        })
    });
    let going = async {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        drop(lender);
    };
    let (event, ()) = tokio::join!(events, going);
    assert_eq!(event.unwrap().node.as_deref(), Some("store"));
    let pending = asked(&credentials, |client| client.delete::<Changed>(&assignment())).await.unwrap();
    assert_eq!((pending.progress.as_str(), pending.is_silent), ("pending", true));
    assert_eq!(pending.waits_for.as_deref(), Some("store"));
    let backup = asked(&credentials, |client| client.bytes(&Target::new(["backup"]))).await.unwrap();
    assert!(!backup.is_empty());

    credentials.token = manager.client.token.replace("cwt_", "cwt_0");
    let unknown =
        asked(&credentials, |client| client.list::<Shown>(&Target::new(["nodes"]))).await.unwrap_err();
    assert!(
        matches!(&unknown, ClientError::Problem(problem) if problem.title == "unauthorized"),
        "{unknown:?}"
    );
}
