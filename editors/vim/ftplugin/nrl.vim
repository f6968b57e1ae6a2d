" Settings of nrl buffers, and the language server where Neovim can start one.
if exists("b:did_ftplugin")
  finish
endif
let b:did_ftplugin = 1

setlocal commentstring=#\ %s comments=:##,:# expandtab shiftwidth=2 softtabstop=2 textwidth=100
let b:undo_ftplugin = "setlocal commentstring< comments< expandtab< shiftwidth< softtabstop< textwidth<"

if has("nvim-0.8")
  lua << END
  vim.lsp.start({
    name = "nrlc",
    cmd = { "nrlc", "lsp" },
    root_dir = vim.fs.dirname(vim.api.nvim_buf_get_name(0)),
  })
END
endif
