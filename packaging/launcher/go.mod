module launcher

go 1.26

require github.com/klauspost/compress v1.19.1
