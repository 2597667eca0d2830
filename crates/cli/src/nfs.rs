//! Export of a pool for NFS servers: the line of exports(5) and nfs-ganesha's block, with reasons.

use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;

use fsstack_control::exports::escaped;
use fsstack_identity::poolid::PoolId;

/// Reasons for the options, as comments of the same file.
pub const REASONS: &str = "\
# fsid: the pool's own id, stored on its branches: a pool has no device that stays the same over remounts.
# no_subtree_check: handles name objects alone, and stay good when something is renamed.
# mountpoint: while the pool is not mounted clients wait; without it the bare directory is exported, and what they
# hold is stale until `exportfs -f`.
# sync: what was acknowledged is on disk.
";

/// Cache lifetime of names and attributes if one server is the only writer. Other changes show after at most twice this
/// time, as the pool's caches and the server's expire one after the other.
const ONLY_WRITER_SECONDS: u16 = 60;

/// nfs-ganesha's parameter for faster reads, with the same guarantees. By default the server reads a file's attributes
/// after each read, for clients of VMware ESXi.
pub const GANESHA_CORE: &str = "NFS_CORE_PARAM { Getattrs_In_Complete_Read = false; }\n";

/// Programs that change the files of an exported pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Any program on the server, and other servers.
    Anybody,
    /// Clients of this server alone.
    ThisServer,
}

/// A pool as exported by a server.
#[derive(Clone, Copy, Debug)]
pub struct Export<'a> {
    /// Where it is mounted.
    pub mount_point: &'a Path,
    /// Its stored id.
    pub id: PoolId,
    /// Programs that change its files.
    pub writers: Writers,
}

/// Options for how long the kernel keeps what it has asked the pool for.
pub const TIMEOUTS: [&str; 3] = ["entry-timeout", "attr-timeout", "negative-timeout"];

/// Mount options that let the pool's caches keep what only one server changes.
pub fn only_writer_options() -> String {
    TIMEOUTS.map(|option| format!("{option}={ONLY_WRITER_SECONDS}")).join(",")
}

/// Clients that may mount it, as in exports(5): a host, a network, `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients(Vec<String>);

/// Reason why a text is no list of clients.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadClients {
    /// exports(5) exports a path without clients to all hosts.
    #[error("name a host, a network, or \"*\" for all hosts")]
    Nobody,
    /// The character would end the word or the line.
    #[error(
        "{0:?} is in no client's name: hosts and networks alone, with blanks between; the options are the pool's"
    )]
    Character(char),
    /// exports(5) takes it as default options for the clients after it.
    #[error("no client's name begins with \"-\": the options are the pool's")]
    Options,
}

impl Clients {
    /// Placeholder if no client was given; no server accepts it as a client.
    pub const NOT_NAMED: &str = "CLIENTS";

    /// Clients to be filled in later.
    pub fn not_named() -> Self {
        Self(vec![Self::NOT_NAMED.to_owned()])
    }
}

impl FromStr for Clients {
    type Err = BadClients;

    fn from_str(text: &str) -> Result<Self, BadClients> {
        let bad = |letter: &char| (letter.is_control() && *letter != '\t') || "()#\"\\".contains(*letter);
        if let Some(letter) = text.chars().find(bad) {
            return Err(BadClients::Character(letter));
        }
        let clients = text.split([' ', '\t']).filter(|client| !client.is_empty());
        let clients: Vec<String> = clients.map(str::to_owned).collect();
        if clients.is_empty() {
            return Err(BadClients::Nobody);
        }
        if clients.iter().any(|client| client.starts_with('-')) {
            return Err(BadClients::Options);
        }
        Ok(Self(clients))
    }
}

impl Export<'_> {
    /// Formats the line for `/etc/exports.d/*.exports`.
    pub fn exports_line(&self, clients: &Clients) -> String {
        let mut line = escaped(self.mount_point);
        for client in &clients.0 {
            // Writing to a string does not fail.
            let _ = write!(line, " {client}(rw,sync,no_subtree_check,mountpoint,fsid={})", self.id);
        }
        line
    }

    /// Formats nfs-ganesha's block. The export's number, which is part of every handle, comes from the pool's id.
    pub fn ganesha_block(&self) -> String {
        let path = self.mount_point.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
        let (kept, because) = match self.writers {
            Writers::Anybody => (0, "others write to the pool too"),
            Writers::ThisServer => (ONLY_WRITER_SECONDS, "nobody else writes to the pool"),
        };
        format!(
            "EXPORT {{\n    Export_Id = {};  # a part of every handle: keep it\n    Path = \"{path}\";\n    \
             Pseudo = \"{path}\";\n    Access_Type = RW;\n    Attr_Expiration_Time = {kept};  # {because}\n    \
             FSAL {{ Name = VFS; }}\n}}\n",
            self.export_number()
        )
    }

    fn export_number(&self) -> u16 {
        u16::from_le_bytes([self.id.0[0], self.id.0[1]]).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(path: &str) -> Export<'_> {
        let id = "0a0b0c0d-0102-4304-8506-0708090a0b0c".parse().unwrap();
        Export { mount_point: Path::new(path), id, writers: Writers::Anybody }
    }

    fn line(path: &str, clients: &str) -> String {
        export(path).exports_line(&clients.parse().unwrap())
    }

    #[test]
    fn a_line_names_the_pool_by_its_id() {
        assert_eq!(
            line("/srv/pool", "10.0.0.0/8"),
            "/srv/pool 10.0.0.0/8(rw,sync,no_subtree_check,mountpoint,fsid=0a0b0c0d-0102-4304-8506-0708090a0b0c)"
        );
        assert!(REASONS.contains("# mountpoint: "));
    }

    /// A name without options gets the defaults of exports(5).
    #[test]
    fn each_client_has_the_options() {
        let options = "(rw,sync,no_subtree_check,mountpoint,fsid=0a0b0c0d-0102-4304-8506-0708090a0b0c)";
        for both in ["a b", " a \t b "] {
            assert_eq!(line("/p", both), format!("/p a{options} b{options}"));
        }
    }

    #[test]
    fn a_bad_list_of_clients_is_refused() {
        let refused = |text: &str| text.parse::<Clients>().unwrap_err();
        for nobody in ["", " ", "\t"] {
            assert_eq!(refused(nobody), BadClients::Nobody);
        }
        assert_eq!(refused("a(ro)"), BadClients::Character('('));
        assert_eq!(refused("a\n/ *(rw)"), BadClients::Character('\n'));
        for (text, letter) in
            [("a#", '#'), ("\"a b\"", '"'), ("a\\040b", '\\'), ("a)", ')'), ("a\u{85}", '\u{85}')]
        {
            assert_eq!(refused(text), BadClients::Character(letter));
        }
        assert_eq!(refused("-rw a"), BadClients::Options);
    }

    #[test]
    fn a_path_may_have_blanks_and_quotes() {
        assert!(line("/srv/my \"pool\"#", "*").starts_with("/srv/my\\040\\042pool\\042\\043 *(rw"));
        assert!(export("/srv/my \"pool\"").ganesha_block().contains("Path = \"/srv/my \\\"pool\\\"\";"));
    }

    #[test]
    fn attributes_are_kept_only_where_one_server_writes() {
        let shared = export("/srv/pool");
        assert!(shared.ganesha_block().contains("Attr_Expiration_Time = 0;"));
        let alone = Export { writers: Writers::ThisServer, ..shared };
        assert!(alone.ganesha_block().contains("Attr_Expiration_Time = 60;"));
        assert_eq!(only_writer_options(), "entry-timeout=60,attr-timeout=60,negative-timeout=60");
    }

    #[test]
    fn ganeshas_number_is_the_pools() {
        assert!(export("/srv/pool").ganesha_block().contains("Export_Id = 2826;"));
        assert!(REASONS.lines().all(|line| line.starts_with('#')));
    }
}
