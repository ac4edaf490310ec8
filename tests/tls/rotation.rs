//! Certificates and authorities that change while weir serves.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::{
    authority::{Authority, Pair},
    mounted::Mounted,
    service::{Weir, client},
};

/// Returns the certificate that the server presents now.
async fn presented(weir: &Weir, authority: &Authority, pair: &Pair) -> Vec<u8> {
    let stream = TcpStream::connect(weir.address()).await.expect("a connection");
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = TlsConnector::from(client(authority, Some(pair)));
    let stream = connector.connect(name, stream).await.expect("a handshake");
    stream.get_ref().1.peer_certificates().expect("a certificate")[0].to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_and_an_authority_are_rotated_under_load_without_a_failed_call() {
    let server = Authority::new("authority of servers");
    let (old, new) = (Authority::new("old authority"), Authority::new("new authority"));
    let (old_pair, new_pair) = (old.sign(&["envoy"]), new.sign(&["envoy"]));
    let mounted = Mounted::new(&server.sign(&["localhost"]), Some(&old.pem()));
    let weir = Arc::new(Weir::start(&mounted, &[]).await);
    let first = presented(&weir, &server, &old_pair).await;

    // one connection for the whole test, and new ones all the time
    let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut load = Vec::new();
    let mut lasting = weir.connect(client(&server, Some(&old_pair))).await.expect("a connection");
    let (stopping, counted) = (Arc::clone(&stop), Arc::clone(&calls));
    load.push(tokio::spawn(async move {
        while !stopping.load(Ordering::Relaxed) {
            lasting.decide().await.expect("a decision on the lasting connection");
            counted.fetch_add(1, Ordering::Relaxed);
        }
    }));
    let config = client(&server, Some(&old_pair));
    let (weir_of_load, stopping, counted) =
        (Arc::clone(&weir), Arc::new(AtomicBool::new(false)), Arc::clone(&calls));
    let stop_new = Arc::clone(&stopping);
    let connecting = tokio::spawn(async move {
        while !stopping.load(Ordering::Relaxed) {
            let mut connection = weir_of_load.connect(Arc::clone(&config)).await.expect("a connection");
            connection.decide().await.expect("a decision on a new connection");
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });

    // the way of a careful operator: both authorities, then a new certificate, then the new authority only
    let both = format!("{}{}", old.pem(), new.pem());
    mounted.update(&server.sign(&["localhost"]), Some(&both));
    weir.until_metric("weir_tls_reloads_total", 1.0).await;
    let second = presented(&weir, &server, &new_pair).await;
    assert_ne!(first, second);
    mounted.update(&server.sign(&["localhost"]), Some(&both));
    weir.until_metric("weir_tls_reloads_total", 2.0).await;
    assert_ne!(presented(&weir, &server, &old_pair).await, second);
    stop_new.store(true, Ordering::Relaxed);
    connecting.await.expect("no failed call");

    mounted.update(&server.sign(&["localhost"]), Some(&new.pem()));
    weir.until_metric("weir_tls_reloads_total", 3.0).await;
    weir.connect(client(&server, Some(&new_pair)))
        .await
        .expect("a connection")
        .decide()
        .await
        .expect("a decision");
    let rejected = match weir.connect(client(&server, Some(&old_pair))).await {
        Ok(mut connection) => connection.decide().await.is_err(),
        Err(_) => true,
    };
    assert!(rejected, "the old authority is no longer trusted");
    let before = calls.load(Ordering::Relaxed);
    assert!(before > 10, "{before} calls");
    weir.until_metric("weir_tls_handshakes_total", 1.0).await;
    while calls.load(Ordering::Relaxed) == before {
        tokio::task::yield_now().await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.expect("no failed call");
    }
    assert!(weir.metric("weir_tls_reloads_failed_total").await == 0.0, "no change was invalid");
}

#[tokio::test]
async fn an_invalid_pair_leaves_the_previous_one_in_use() {
    let server = Authority::new("authority of servers");
    let clients = Authority::new("authority of clients");
    let (first, second) = (server.sign(&["localhost"]), server.sign(&["localhost"]));
    let pair = clients.sign(&["envoy"]);
    let mounted = Mounted::new(&first, Some(&clients.pem()));
    let weir = Weir::start(&mounted, &[]).await;
    let used = presented(&weir, &server, &pair).await;
    let mixed = Pair { certificate: second.certificate.clone(), key: first.key.clone() };
    let garbage = Pair { certificate: "-----BEGIN".into(), key: second.key.clone() };
    let (unreadable, of_another) = broken_chains(&server);
    for (failures, invalid, ca) in [
        (1.0, &mixed, clients.pem()),
        (2.0, &garbage, clients.pem()),
        (3.0, &second, "nothing".into()),
        (4.0, &unreadable, clients.pem()),
        (5.0, &of_another, clients.pem()),
    ] {
        mounted.update(invalid, Some(&ca));
        weir.until_metric("weir_tls_reloads_failed_total", failures).await;
        assert_eq!(presented(&weir, &server, &pair).await, used);
    }
    assert!(weir.metric("weir_tls_reloads_total").await == 0.0);
    mounted.update(&second, Some(&clients.pem()));
    weir.until_metric("weir_tls_reloads_total", 1.0).await;
    assert_ne!(presented(&weir, &server, &pair).await, used);
    weir.stop().await;
}

/// Returns two pairs whose own certificates are valid: the intermediate of the first is no certificate, that of the
/// second has the right name and has not signed it.
fn broken_chains(root: &Authority) -> (Pair, Pair) {
    let (issuer, impostor) = (root.intermediate("between"), root.intermediate("between"));
    let own = issuer.sign(&["localhost"]);
    let with = |intermediate: &str| Pair {
        certificate: own.certificate.clone() + intermediate,
        key: own.key.clone(),
    };
    // Base64 of bytes that are no certificate
    let unreadable = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    (with(unreadable), with(&impostor.pem()))
}

#[tokio::test]
async fn a_chain_is_presented_as_a_whole() {
    let root = Authority::new("authority of servers");
    let (between, clients) = (root.intermediate("between"), Authority::new("authority of clients"));
    let (own, pair) = (between.sign(&["localhost"]), clients.sign(&["envoy"]));
    let mounted = Mounted::new(&root.sign(&["localhost"]), Some(&clients.pem()));
    let weir = Weir::start(&mounted, &[]).await;
    let before = presented(&weir, &root, &pair).await;
    mounted
        .update(&Pair { certificate: own.certificate + &between.pem(), key: own.key }, Some(&clients.pem()));
    weir.until_metric("weir_tls_reloads_total", 1.0).await;
    // the client trusts the root only
    assert_ne!(presented(&weir, &root, &pair).await, before);
    weir.stop().await;
}

#[tokio::test]
async fn files_that_are_replaced_one_after_the_other_are_no_error() {
    let server = Authority::new("authority");
    let dir = tempfile::tempdir().expect("a directory");
    let (first, second) = (server.sign(&["localhost"]), server.sign(&["localhost"]));
    // plain files instead of a mount: the links lead out of it
    let mounted = Mounted::new(&first, None);
    for (name, text) in [("tls.crt", &first.certificate), ("tls.key", &first.key)] {
        fs::write(dir.path().join(name), text).expect("a file");
        fs::remove_file(mounted.path(name)).expect("a link");
        std::os::unix::fs::symlink(dir.path().join(name), mounted.path(name)).expect("a link");
    }
    let weir = Weir::start(&mounted, &[]).await;
    let any = server.sign(&["any"]);
    let used = presented(&weir, &server, &any).await;
    fs::write(dir.path().join("tls.crt"), &second.certificate).expect("a file");
    // longer than a change takes to be noticed, shorter than a pair may stay incomplete
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(presented(&weir, &server, &any).await, used);
    fs::write(dir.path().join("tls.key"), &second.key).expect("a file");
    weir.until_metric("weir_tls_reloads_total", 1.0).await;
    assert_ne!(presented(&weir, &server, &any).await, used);
    weir.stop().await;
}
