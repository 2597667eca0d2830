//! What an NFS server is told to export a pool: the line of exports(5), and nfs-ganesha's block, with the reasons.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use fsstack_engine::poolid::PoolId;

/// A pool as a server sees it.
#[derive(Clone, Copy, Debug)]
pub struct Export<'a> {
    /// Where it is mounted.
    pub mount_point: &'a Path,
    /// Its stored id.
    pub id: PoolId,
}

impl Export<'_> {
    /// The line for `/etc/exports.d/*.exports`; `clients` as exports(5) has them (a host, a network, `*`).
    pub fn exports_line(&self, clients: &str) -> String {
        let path = escaped(self.mount_point);
        format!("{path} {clients}(rw,sync,no_subtree_check,fsid={})", self.id)
    }

    /// The reasons for what the line says, as comments of the same file.
    pub fn reasons(&self) -> &'static str {
        "# fsid: the pool's own id, stored on its branches: a pool has no device that stays the same over remounts.\n\
         # no_subtree_check: handles name objects alone, and stay good when something is renamed.\n\
         # sync: what was acknowledged is on disk.\n"
    }

    /// nfs-ganesha's block. The number of the export is made from the pool's id: it is a part of every handle.
    pub fn ganesha_block(&self) -> String {
        let path = self.mount_point.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
        format!(
            "EXPORT {{\n    Export_Id = {};  # a part of every handle: keep it\n    Path = \"{path}\";\n    \
             Pseudo = \"{path}\";\n    Access_Type = RW;\n    Attr_Expiration_Time = 0;  # others write to the pool too\n    \
             FSAL {{ Name = VFS; }}\n}}\n",
            self.export_number()
        )
    }

    fn export_number(&self) -> u16 {
        u16::from_le_bytes([self.id.0[0], self.id.0[1]]).max(1)
    }
}

/// A path as exports(5) wants it: blanks, quotes, comments and backslashes as octal numbers.
pub(crate) fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'!'..=b'~' if !b"\"#\\".contains(byte) => text.push(char::from(*byte)),
            // Writing to a string does not fail.
            _ => drop(write!(text, "\\{byte:03o}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(path: &str) -> Export<'_> {
        let id = "0a0b0c0d-0102-4304-8506-0708090a0b0c".parse().unwrap();
        Export { mount_point: Path::new(path), id }
    }

    #[test]
    fn a_line_names_the_pool_by_its_id() {
        assert_eq!(
            export("/srv/pool").exports_line("10.0.0.0/8"),
            "/srv/pool 10.0.0.0/8(rw,sync,no_subtree_check,fsid=0a0b0c0d-0102-4304-8506-0708090a0b0c)"
        );
    }

    #[test]
    fn a_path_may_have_blanks_and_quotes() {
        assert!(
            export("/srv/my \"pool\"#").exports_line("*").starts_with("/srv/my\\040\\042pool\\042\\043 *(rw")
        );
        assert!(export("/srv/my \"pool\"").ganesha_block().contains("Path = \"/srv/my \\\"pool\\\"\";"));
    }

    #[test]
    fn ganeshas_number_is_the_pools() {
        assert!(export("/srv/pool").ganesha_block().contains("Export_Id = 2826;"));
        assert!(export("/p").reasons().lines().all(|line| line.starts_with('#')));
    }
}
