//! A volume behind an NFS server that is a client of the volume itself.

use std::fs;
use std::net::TcpStream;

use fsstack_lab::cleanup::{self, Entry};
use fsstack_lab::ganesha::{Ganesha, ROOT};
use fsstack_lab::gluster::{self, KINDS};
use fsstack_lab::needs;
use fsstack_lab::network::within;
use fsstack_lab::nfs4::{Client, How};

use crate::scenario::{eventually, volume};

#[test]
fn a_volume_is_written_by_nfs_and_read_by_its_mount_and_the_other_way_round() {
    needs!(mounting(), gluster());
    if let Err(skip) = Ganesha::able_for_volumes() {
        return skip.announce();
    }
    let lab = gluster::lab_of_tests().unwrap();
    let home = cleanup::fresh("served").unwrap();
    let _home = Entry::dir(&home).unwrap();
    for kind in KINDS {
        let dir = home.file_name().unwrap().to_str().unwrap();
        let mounted = lab.mount_point(volume(kind)).join(dir);
        // Removed after the server has ended, also after a failure.
        let _mounted = Entry::new_dir(&mounted).unwrap();
        let server = Ganesha::try_serve_volume(&lab, volume(kind), &home.join(kind)).unwrap();
        // From here nothing leads to the server: it is in the lab's network.
        let stream = within(server.network(), || TcpStream::connect(server.address())).unwrap();
        let mut client = Client::over(stream, ROOT).unwrap();
        let at = client.handle(dir).unwrap();
        let bytes: Vec<u8> = kind.bytes().cycle().take(100_000).collect();
        let file = client.open(&at, "by-nfs", How::Made).unwrap();
        client.write(&file, 0, &bytes).unwrap();
        client.commit(&file).unwrap();
        client.close(&file).unwrap();
        assert_eq!(fs::read(mounted.join("by-nfs")).unwrap(), bytes, "{kind}");
        fs::write(mounted.join("by-mount"), kind).unwrap();
        eventually("both clients' files are listed by NFS", || {
            client.list(&at) == Ok(vec!["by-mount".to_owned(), "by-nfs".to_owned()])
        });
        let handle = client.handle(&format!("{dir}/by-mount")).unwrap();
        assert_eq!(client.read(&handle, 0, 100).unwrap(), kind.as_bytes());
    }
}
