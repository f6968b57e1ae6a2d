//! Files on disk, as the compiler reads them.

use nrl_driver::Files;

/// The file system.
pub struct Disk;

impl Files for Disk {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        let path = std::path::Path::new(path);
        if path.is_dir() {
            return Err("it is a directory; name files of it".into());
        }
        std::fs::read(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => "there is no such file".into(),
            std::io::ErrorKind::PermissionDenied => "permission denied".into(),
            _ => e.to_string(),
        })
    }
}
