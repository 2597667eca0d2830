//! `fsstack nfs`: export lines for servers, and checks of an export.

mod check;
mod handles;

use super::Failed;
use super::args::{Nfs, NfsAction};
use super::pool::{self, Pool};
use super::show::{self, Style};
use crate::nfs::{Clients, Export, GANESHA_CORE, REASONS, TIMEOUTS, Writers, only_writer_options};
use fsstack_control::api::ExportShown;
use fsstack_control::exports::named_elsewhere;
use fsstack_control::holders;
use fsstack_identity::poolid::PoolId;
use fsstack_pool::Printable;
use fsstack_sys::{program, whole_file};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Directory of the kernel server's configuration.
const ETC: &str = "/etc";

pub(crate) fn run(wish: &Nfs, style: Style) -> Result<(), Failed> {
    match &wish.action {
        NfsAction::Show { pool, clients, install, only_writer } => {
            let pool = pool::find(pool)?;
            let writers = if *only_writer { Writers::ThisServer } else { Writers::Anybody };
            let mut shown = described(&pool, clients.as_ref().unwrap_or(&Clients::not_named()), writers)?;
            if *install {
                shown.installed = Some(self::install(&pool, &shown)?);
            }
            show::answer(style, &shown, |shown| human(shown, clients.as_ref()))
        }
        NfsAction::Check { pool } => check::check(&pool::find(pool)?, style),
    }
}

/// Mount options for lasting handles.
struct Mounted {
    /// `nfs-export`.
    exported: bool,
    /// `nfs-identity`.
    identity: Option<String>,
    /// Options for how long the kernel keeps what it has asked for, with their seconds.
    timeouts: Vec<(&'static str, f64)>,
    /// `out-of-band`.
    out_of_band: String,
}

impl Mounted {
    fn of(pool: &Pool) -> Result<Self, Failed> {
        let keys = pool.client().keys()?;
        Ok(Self {
            exported: keys.value("nfs-export") == Some("true"),
            identity: keys.value("nfs-identity").filter(|uuid| !uuid.is_empty()).map(str::to_owned),
            timeouts: TIMEOUTS
                .into_iter()
                .filter_map(|name| Some((name, keys.value(name)?.parse().ok()?)))
                .collect(),
            out_of_band: keys.value("out-of-band").unwrap_or_default().to_owned(),
        })
    }
}

fn described(pool: &Pool, clients: &Clients, writers: Writers) -> Result<ExportShown, Failed> {
    let mounted = Mounted::of(pool)?;
    let mount_point = pool.entry.mount_point();
    let export = Export { mount_point: &mount_point, id: stored(pool)?.id?, writers };
    Ok(ExportShown {
        mount_point: pool.shown(),
        nfs_export: mounted.exported,
        nfs_identity: mounted.identity,
        exports_line: export.exports_line(clients),
        exports_file: Printable::path(&file_of(pool)).to_string(),
        installed: None,
        ganesha_block: export.ganesha_block(),
        ganesha_core: GANESHA_CORE.to_owned(),
        only_writer_options: (writers == Writers::ThisServer).then(only_writer_options),
    })
}

/// Comment in the output: reason and place of the server's parameters.
const CORE_REASON: &str = "\
# Once for the server: if ganesha.conf has such a block, put the line into it, for a second block is not merged.
# It saves a request for attributes at each read, which only VMware ESXi clients need.
";

/// Prints the export; an installed line is printed alone.
fn human(shown: &ExportShown, clients: Option<&Clients>) -> String {
    let ExportShown { exports_file, exports_line, ganesha_block, ganesha_core, .. } = shown;
    if let Some(installed) = &shown.installed {
        return format!("wrote {exports_file}; {installed}\n");
    }
    let warning = if shown.nfs_export {
        ""
    } else {
        "# NOT YET: the pool is mounted without nfs-export, so that handles go stale when the kernel forgets.\n\n"
    };
    let identity = match &shown.nfs_identity {
        Some(uuid) => {
            format!("# The pool has nfs-identity={uuid}, so that ganesha's handles survive remounts.")
        }
        None => {
            "# Mount the pool with nfs-identity=UUID besides, so that ganesha's handles survive remounts."
                .into()
        }
    };
    let to_name = match clients {
        Some(_) => String::new(),
        None => format!(
            "# {}: the hosts and networks that may mount it, as --clients takes them; with --install the line is written.\n",
            Clients::NOT_NAMED
        ),
    };
    let options = match &shown.only_writer_options {
        Some(options) => format!(
            "# Mount the pool with {options}, for both servers; or: fsstack set {} {}\n\n",
            shown.mount_point,
            options.replace(',', " ")
        ),
        None => String::new(),
    };
    format!(
        "{warning}{options}# For the kernel's server, in {exports_file}:\n{REASONS}{to_name}{exports_line}\n\n# For nfs-ganesha.\n{identity}\n{ganesha_block}\n{CORE_REASON}{ganesha_core}"
    )
}

/// Writes the line and makes a running server read it. Returns the result as text.
fn install(pool: &Pool, shown: &ExportShown) -> Result<String, Failed> {
    let ExportShown { mount_point, exports_file, exports_line, .. } = shown;
    if !shown.nfs_export {
        return Err(Failed::Refused(format!(
            "{mount_point}: mounted without nfs-export: handles would go stale when the kernel forgets; mount it with nfs-export"
        )));
    }
    let path = file_of(pool);
    if let Some(line) = named_elsewhere(Path::new(ETC), &path, &pool.entry.mount_point()) {
        return Err(Failed::Refused(format!(
            "{line} exports {mount_point} already: take that line out first"
        )));
    }
    let failed = |error: io::Error| Failed::system(exports_file, &error);
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    whole_file::replace(&path, &format!("{REASONS}{exports_line}\n")).map_err(failed)?;
    match holders::is_serving() {
        true => reload().map_err(|why| Failed::Refused(format!("wrote {exports_file}; {why}"))),
        false => Ok("no server runs: it reads that when it is started".to_owned()),
    }
}

/// Makes the running server read the exports. Returns exportfs(8)'s messages.
fn reload() -> Result<String, String> {
    let answer_of = program::output("exportfs", "nfs-kernel-server", |exportfs| exportfs.arg("-r"))?;
    let said = program::said(&answer_of);
    match (answer_of.status.success(), said.as_str()) {
        (true, "") => Ok("the server has read it".to_owned()),
        (true, said) => Ok(format!("the server has read it, and exportfs said: {said}")),
        (false, said) => Err(format!("exportfs -r: {said}")),
    }
}

fn file_of(pool: &Pool) -> PathBuf {
    Path::new(ETC).join(format!("exports.d/fsstack-{}.exports", pool.entry.id))
}

/// State that keeps handles valid.
struct Stored {
    id: Result<PoolId, Failed>,
    index: String,
}

fn stored(pool: &Pool) -> Result<Stored, Failed> {
    let status = pool.client().status()?;
    let unknown = || Failed::Refused(format!("{}: the pool has no id; mount it as root", pool.shown()));
    let id = status
        .pool_id
        .ok_or_else(unknown)
        .and_then(|id| id.parse().map_err(|why| Failed::Refused(format!("{}: {why}", pool.shown()))));
    Ok(Stored { id, index: status.index })
}
