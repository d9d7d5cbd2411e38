#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#
# What the stub's file must look like: it is loaded into every process, on systems older than the one it was built on.
set -u

stub=${STUB:?path of libdualport.so}
failed=0
fail() { echo "FAILED: $*"; failed=1; }

dynamic=$("${READELF:-readelf}" -dW "$stub") || exit 1
symbols=$("${READELF:-readelf}" --dyn-syms -W "$stub") || exit 1

if [ "${ENTRY_SANITIZER:-no}" = no ]; then
	needed=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic" | sort | tr '\n' ' ')
	# on aarch64 the stack protector's and TLS symbols live in the loader itself, which every process has
	case $needed in
	"libc.so.6 " | "ld-linux-aarch64.so.1 libc.so.6 ") ;;
	*) fail "needs '$needed', not libc.so.6 alone" ;;
	esac

	newest=$(grep ' UND ' <<<"$symbols" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
	[ -n "$newest" ] || fail "no versioned symbol of the C library is referenced: this check is broken"
	[ "$(printf '%s\nGLIBC_2.28\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.28 ] ||
		fail "refers to $newest: $(grep " UND .*$newest" <<<"$symbols" | awk '{print $8}' | tr '\n' ' ')"
fi

relocs=$("${READELF:-readelf}" -rW "$stub") || exit 1
grep -Eq 'R_X86_64_TPOFF64|R_AARCH64_TLS_TPREL' <<<"$relocs" || fail "thread-local variables are not initial-exec"
grep -E 'DTPMOD|TLSDESC' <<<"$relocs" && fail "a thread-local variable is not initial-exec"
grep -q '__tls_get_addr' <<<"$symbols" && fail "refers to __tls_get_addr"

for f in dlopen dlsym dlvsym getenv; do
	grep -Eq " $f\$" <<<"$symbols" || fail "$f is not exported in the base version"
done
for f in ibv_create_comp_channel@@IBVERBS_1.0 ibv_alloc_pd@@IBVERBS_1.1 ibv_qp_to_qp_ex@@IBVERBS_1.6 \
	ibv_reg_mr_iova@@IBVERBS_1.7 ibv_reg_mr_iova2@@IBVERBS_1.8 ibv_unimport_mr@@IBVERBS_1.10 ibv_unimport_pd@@IBVERBS_1.10 \
	ibv_reg_dmabuf_mr@@IBVERBS_1.12 \
	ibv_query_qp_data_in_order@@IBVERBS_1.14 ibv_reg_mr_ex@@IBVERBS_1.15 ibv_reg_buf_mr@@IBVERBS_1.17 \
	ibv_qp_attach_comp_cntr@@IBVERBS_1.18 \
	mlx5dv_init_obj@MLX5_1.0 mlx5dv_init_obj@@MLX5_1.2 \
	mlx5dv_create_qp@@MLX5_1.3 mlx5dv_devx_obj_create@@MLX5_1.7 mlx5dv_reg_dmabuf_mr@@MLX5_1.25; do
	grep -Eq " $f\$" <<<"$symbols" || fail "$f is not exported"
done
watched='mlx5dv_create_qp@@MLX5_1\.3|mlx5dv_devx_obj_create@@MLX5_1\.7|mlx5dv_reg_dmabuf_mr@@MLX5_1\.25'
extra=$(awk '$7 != "UND" && $7 != "ABS" && $5 == "GLOBAL" {print $8}' <<<"$symbols" |
	grep -Ev "^(dlopen|dlsym|dlvsym|getenv|ibv_[a-z0-9_]*@@IBVERBS_1\.[0-9]+|mlx5dv_init_obj@@?MLX5_1\.[02]|$watched)\$")
[ -z "$extra" ] || fail "also exports $extra"

# The C library knows its caller by the return address, so what is not ours leaves by a jump. Calls to fixed places
# inside these functions (the first look-up) are fine; a call through a pointer is the real function being called.
for f in dlopen dlsym dlvsym; do
	code=$("${OBJDUMP:-objdump}" -d --no-show-raw-insn --disassemble=$f "$stub")
	grep -Eq 'jmp +\*|br	x[0-9]+' <<<"$code" || fail "$f has no jump through a pointer"
	grep -Eq 'call +\*|blr	' <<<"$code" && fail "$f calls through a pointer"
	grep -Eq 'call .*<dp_serve|bl	.*<dp_serve' <<<"$code" && fail "$f calls dp_serve, must jump"
done

[ $failed = 0 ] && echo "ok: $stub"
exit $failed
