//! `fsstack copy` of a tree of thousands of levels.

use fsstack_lab::{self as lab, MiB, needs};

use super::copy::copy;
use crate::script::python;

/// More than a path has room for.
const LEVELS: usize = 3000;

/// The file at the bottom has a copying thread be the last that has the directories open.
#[test]
fn a_tree_of_thousands_of_levels_arrives() {
    needs!(mounting(), loops(), root(), program("python3"));
    let from = lab::pool().xfs_branch("from", MiB(300)).unmounted();
    let pool = lab::pool().xfs_branch("a", MiB(300)).xfs_branch("b", MiB(300)).mount();
    let source = from.branch("from").path().join("tree");
    let down = |make: &str, rest: &str| {
        format!("import os\nfor level in range({LEVELS}):{make} os.chdir('d')\n{rest}")
    };
    std::fs::create_dir(&source).unwrap();
    python(&source, &down(" os.mkdir('d');", "open('bottom', 'w').write('content'); os.utime('.', (1, 1))"));
    let copied = copy(&source, pool.path());
    assert_eq!(copied["directories"], LEVELS + 1, "{copied:#}");
    let seen = python(pool.at("tree"), &down("", "print(open('bottom').read(), int(os.stat('.').st_mtime))"));
    assert_eq!(seen, "content 1");
}
