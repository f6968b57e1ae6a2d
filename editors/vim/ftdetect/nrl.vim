" Files of the recipe language.
autocmd BufRead,BufNewFile *.nrl setfiletype nrl
