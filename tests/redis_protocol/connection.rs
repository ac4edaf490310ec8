//! What clients send by themselves.

use crate::{
    client::{Client, command, start},
    in_process::Weir,
};

async fn client() -> (Weir, Client) {
    let weir = start("domain: d", &[]).await;
    let client = Client::to(&weir).await;
    (weir, client)
}

#[tokio::test]
async fn simple_commands_reply_as_in_redis() {
    let (_weir, mut client) = client().await;
    for (command, reply) in [
        ("PING", "+PONG"),
        ("ping hello", "\"hello\""),
        ("ECHO a", "\"a\""),
        ("ECHO", "-ERR wrong number of arguments for 'echo' command"),
        // there is one keyspace
        ("SELECT 0", "+OK"),
        ("SELECT 99", "+OK"),
        ("SELECT x", "-ERR invalid DB index"),
        ("CLIENT SETINFO LIB-NAME redis-py", "+OK"),
        ("CLIENT SETINFO LIB-VER 5.0", "+OK"),
        ("CLIENT SETINFO X 5.0", "-ERR Unrecognized option 'X'"),
        ("CLIENT GETNAME", "nil"),
        ("CLIENT SETNAME me", "+OK"),
        ("CLIENT GETNAME", "\"me\""),
        ("CLIENT NO-EVICT ON", "+OK"),
        ("CLIENT NO-TOUCH x", "-ERR syntax error"),
        ("CLIENT REPLY ON", "+OK"),
        ("UNWATCH", "+OK"),
        ("GET k", "-ERR unknown command 'GET'"),
        (
            "AUTH x",
            "-ERR AUTH <password> called without any password configured for the default user: WEIR_REDIS_AUTH is not set",
        ),
    ] {
        assert_eq!(client.ask(command).await, reply, "{command}");
    }
    let info = client.ask("CLIENT INFO").await;
    assert!(info.contains(" name=me db=0 lib-name=redis-py lib-ver=5.0 resp=2"), "{info}");
    assert!(client.ask("CLIENT ID").await.starts_with(':'));
    assert!(client.ask("CLIENT TRACKING ON").await.starts_with("-ERR unknown subcommand"));
    assert_eq!(client.ask("QUIT").await, "+OK");
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn databases_are_one_keyspace() {
    let (_weir, mut client) = client().await;
    assert_eq!(client.ask("RL.REDUCE k 2 60").await, ":2");
    client.ask("SELECT 5").await;
    assert_eq!(client.ask("RL.REDUCE k 2 60").await, ":1");
}

#[tokio::test]
async fn commands_are_described_as_clients_ask() {
    let (_weir, mut client) = client().await;
    let count = client.ask("COMMAND COUNT").await;
    let list = client.ask("COMMAND LIST").await;
    assert_eq!(count, format!(":{}", list.split(' ').count()));
    assert!(client.ask("COMMAND").await.matches('[').count() > 2 * 20);
    assert_eq!(
        client.ask("COMMAND INFO CL.THROTTLE get DEL EXISTS ping").await,
        "[[\"cl.throttle\" :-5 [+write +fast] :1 :1 :1] nil [\"del\" :-2 [+write +fast] :1 :-1 :1] \
         [\"exists\" :-2 [+readonly +fast] :1 :-1 :1] [\"ping\" :-1 [+readonly +fast] :0 :0 :0]]"
    );
    let docs = client.ask("COMMAND DOCS cl.throttle nothing").await;
    assert_eq!(
        docs,
        "[\"cl.throttle\" [\"summary\" \"Takes tokens from a bucket, as redis-cell does\" \"group\" \"rate limiting\"]]"
    );
    assert!(client.ask("COMMAND GETKEYS").await.starts_with("-ERR unknown subcommand"));
    let info = client.ask("INFO server").await;
    assert!(
        info.contains("redis_version:7.2.0") && info.contains("weir_version:") && info.contains("loading:0")
    );
}

#[tokio::test]
async fn hello_chooses_the_version() {
    let (_weir, mut client) = client().await;
    assert!(
        client.ask("HELLO").await.starts_with("[\"server\" \"weir\" \"version\" \"7.2.0\" \"proto\" :2 ")
    );
    let hello = client.ask("HELLO 3 SETNAME me").await;
    assert!(hello.starts_with("{\"server\": \"weir\", \"version\": \"7.2.0\", \"proto\": :3, "), "{hello}");
    assert_eq!(client.ask("CLIENT GETNAME").await, "\"me\"");
    assert!(client.ask("COMMAND DOCS ping").await.starts_with("{\"ping\": {"));
    assert_eq!(client.ask("HELLO 4").await, "-NOPROTO unsupported protocol version");
    assert_eq!(client.ask("HELLO x").await, "-ERR Protocol version is not an integer or out of range");
    assert_eq!(client.ask("HELLO 2 NONSENSE").await, "-ERR Syntax error in HELLO option 'NONSENSE'");
    assert_eq!(client.ask("RESET").await, "+RESET");
    assert!(client.ask("HELLO").await.starts_with("[\"server\""));
    assert_eq!(client.ask("CLIENT GETNAME").await, "nil");
}

#[tokio::test]
async fn a_client_has_to_authenticate_if_there_is_a_password() {
    const NOAUTH: &str = "-NOAUTH Authentication required.";
    const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.";
    let weir = start("domain: d", &[("WEIR_REDIS_AUTH", "me:secret")]).await;
    let mut client = Client::to(&weir).await;
    for (command, reply) in [
        ("PING", NOAUTH),
        ("NOTHING", NOAUTH),
        ("RL.REDUCE k 2 60", NOAUTH),
        ("MULTI", NOAUTH),
        ("AUTH secret", WRONG),
        ("AUTH me wrong", WRONG),
        ("HELLO 3 AUTH me wrong", WRONG),
        ("AUTH me secret", "+OK"),
        ("RL.REDUCE k 2 60", ":2"),
        ("RESET", "+RESET"),
        ("PING", NOAUTH),
    ] {
        assert_eq!(client.ask(command).await, reply, "{command}");
    }
    assert!(client.ask("HELLO 3").await.starts_with("-NOAUTH HELLO must be called"));
    assert!(client.ask("HELLO 3 AUTH me secret").await.starts_with("{\"server\""));
    assert_eq!(client.ask("RL.REDUCE k 2 60").await, ":1");
    let metrics = crate::in_process::get(weir.addresses.debug, "/metrics").await;
    assert!(metrics.contains("weir_redis_port_auth_failed_total 3"), "{metrics}");

    let weir = start("domain: d", &[("WEIR_REDIS_AUTH", "secret")]).await;
    let mut client = Client::to(&weir).await;
    assert_eq!(client.ask("AUTH secret").await, "+OK");
    assert_eq!(client.ask("PING").await, "+PONG");
}

#[tokio::test]
async fn a_transaction_replies_to_its_commands_together() {
    let (_weir, mut client) = client().await;
    for (command, reply) in [
        ("MULTI", "+OK"),
        ("RL.REDUCE k 2 60", "+QUEUED"),
        ("CL.THROTTLE k 15 30 60", "+QUEUED"),
        ("RL.REDUCE k x 60", "+QUEUED"),
        ("MULTI", "-ERR MULTI calls can not be nested"),
        // an error of one command leaves the others
        ("EXEC", "[:2 [:0 :16 :15 :-1 :2] -Value is not an integer or out of range]"),
        ("EXEC", "-ERR EXEC without MULTI"),
        ("DISCARD", "-ERR DISCARD without MULTI"),
        ("MULTI", "+OK"),
        ("RL.REDUCE k 2 60", "+QUEUED"),
        ("DISCARD", "+OK"),
        ("RL.GET k 2 60", ":1"),
        ("MULTI", "+OK"),
        ("NOTHING", "-ERR unknown command 'NOTHING'"),
        ("RL.REDUCE k 2 60", "+QUEUED"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("RL.GET k 2 60", ":1"),
        ("MULTI", "+OK"),
        ("EXEC", "[]"),
        ("MULTI", "+OK"),
        ("RESET", "+RESET"),
        ("EXEC", "-ERR EXEC without MULTI"),
    ] {
        assert_eq!(client.ask(command).await, reply, "{command}");
    }
    assert!(client.ask("WATCH k").await.starts_with("-ERR WATCH is not supported"));
}

#[tokio::test]
async fn the_replies_to_a_pipeline_come_in_order() {
    let (_weir, mut client) = client().await;
    let mut bytes = Vec::new();
    for i in 0..5_000 {
        bytes.extend(command(&["CL.THROTTLE", "k", "4999", "1", "60"]));
        bytes.extend(command(&["ECHO", &i.to_string()]));
    }
    client.send(&bytes).await;
    for i in 0..5_000 {
        let reply = client.reply().await;
        assert!(reply.starts_with(&format!("[:0 :5000 :{} ", 4_999 - i)), "{reply}");
        assert_eq!(client.reply().await, format!("\"{i}\""));
    }
}

#[tokio::test]
async fn metrics_count_commands() {
    let (weir, mut client) = client().await;
    client.ask("CL.THROTTLE k 0 1 60").await;
    client.ask("CL.THROTTLE k 0 1 60").await;
    client.ask("NOTHING").await;
    let metrics = crate::in_process::get(weir.addresses.debug, "/metrics").await;
    for line in [
        "weir_redis_port_commands_total{command=\"cl.throttle\"} 2",
        "weir_redis_port_commands_total{command=\"unknown\"} 1",
        "weir_redis_port_limited_total 1",
        "weir_redis_port_errors_total 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

#[tokio::test]
async fn what_has_arrived_before_a_stop_is_answered() {
    let (weir, mut client) = client().await;
    assert_eq!(client.ask("PING").await, "+PONG");
    let stopped = weir.stop();
    assert_eq!(client.rest().await, "");
    stopped.await.expect("no panic").expect("a clean stop");
}
