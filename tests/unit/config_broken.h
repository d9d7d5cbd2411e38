/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/* Configurations that are wrong, and the whole message that each must give. */
#ifndef DUALPORT_CONFIG_BROKEN_H
#define DUALPORT_CONFIG_BROKEN_H

#define G "gpus = ( { ports = [ \"a:1\", \"b:1\" ]; } );\n"
#define P33                                                                                                            \
	"\"a:1\",\"a:2\",\"a:3\",\"a:4\",\"a:5\",\"a:6\",\"a:7\",\"a:8\",\"a:9\",\"a:10\",\"a:11\",\n\"a:12\","        \
	"\"a:13\",\"a:14\",\"a:15\",\"a:16\",\"a:17\",\"a:18\",\"a:19\",\"a:20\",\"a:21\",\"a:22\",\"a:23\","          \
	"\"a:24\",\"a:25\",\"a:26\",\"a:27\",\"a:28\",\"a:29\",\"a:30\",\"a:31\",\"a:32\",\n\"a:33\""

static const struct broken_file {
	const char *text, *err;
} broken_files[] = {
	{ "enable = true;\nstripe = ;\n", "./dualport.conf:2: syntax error" },
	{ "enable = true\nenable = false;\n", "./dualport.conf:2: duplicate setting name" },
	{ "\ncolour = 3;\n",
	  "./dualport.conf:2: colour: unknown key; the top level has enable, gpus, lag, ordering, patience, flush, bond_wait, "
	  "stuck, single_threaded, diag, diag_json, debug" },
	{ "strip = { align = 128; };\n", "./dualport.conf:1: strip: unknown section; there are stripe, peer and nvshmem" },
	{ "stripe = {\n algn = 128;\n};\n",
	  "./dualport.conf:2: stripe.algn: unknown key; stripe has split_min, spread_min, align, weights" },
	{ "split_min = \"8k\";\n", "./dualport.conf:1: split_min: belongs in stripe = { ... }" },
	{ "peer = { align = \"8k\"; };\n", "./dualport.conf:1: peer.align: belongs in stripe = { ... }" },
	{ "stripe = { ordering = \"rc\"; };\n",
	  "./dualport.conf:1: stripe.ordering: belongs at the top level of the file" },
	{ "ports = [ \"a:1\" ];\n", "./dualport.conf:1: ports: belongs in an entry of gpus" },
	{ "stripe = 5;\n", "./dualport.conf:1: stripe: must be a section stripe = { ... }, not a number" },
	{ "enable = \"yes\";\n", "./dualport.conf:1: enable: must be true or false, not a string" },
	{ "enable = 2;\n", "./dualport.conf:1: enable: must be true or false, not 2" },
	{ "ordering = 1;\n", "./dualport.conf:1: ordering: must be a string, not a number" },
	{ "ordering = \"strikt\";\n",
	  "./dualport.conf:1: ordering: \"strikt\" is none of rc, strict, signal, relaxed" },
	{ "debug = \"\";\n", "./dualport.conf:1: debug: an empty string" },
	{ "peer = { port = \"13579\"; };\n", "./dualport.conf:1: peer.port: must be a number, not a string" },
	{ "peer = { port = 0; };\n", "./dualport.conf:1: peer.port: \"0\" is less than 1" },
	{ "peer = { port = 65536; };\n", "./dualport.conf:1: peer.port: \"65536\" is more than 65535" },
	{ "peer = {\nport = 65530; };\n", "./dualport.conf:2: peer.port: 16 ports from 65530 on go beyond 65535" },
	{ "peer = { bind = \"10.0.0.1,eth0\"; };\n", "./dualport.conf:1: peer.bind: \"eth0\" is not an IP address" },
	{ "peer = { ordering = \"rc\"; };\n",
	  "./dualport.conf:1: peer.ordering: \"rc\" is not an IP address, perhaps with /BITS" },
	{ "diag_json = \"/tmp/%d\";\n", "./dualport.conf:1: diag_json: \"/tmp/%d\": % is followed by neither p nor %" },
	{ "stripe = { split_min = 1.5; };\n",
	  "./dualport.conf:1: stripe.split_min: must be a size (a number, or a string as "
	  "\"8k\"), not a number with a fraction" },
	{ "stripe = { split_min = \"big\"; };\n",
	  "./dualport.conf:1: stripe.split_min: \"big\" is not a size (as 4096, 8k, 1m)" },
	{ "stripe = { split_min = \"8q\"; };\n",
	  "./dualport.conf:1: stripe.split_min: \"8q\": \"q\" is no unit of a size (as 4096, 8k, 1m)" },
	{ "stripe = { split_min = \"99999999999g\"; };\n",
	  "./dualport.conf:1: stripe.split_min: \"99999999999g\" is too large" },
	{ "stripe = { split_min = \"99999999999999999999999\"; };\n",
	  "./dualport.conf:1: stripe.split_min: \"99999999999999999999999\" is too large" },
	{ "stripe = { split_min = -1; };\n", "./dualport.conf:1: stripe.split_min: \"-1\" is negative" },
	{ "stripe = { spread_min = 0; };\n", "./dualport.conf:1: stripe.spread_min: \"0\" is less than 1" },
	{ "stripe = {\nalign = \"3k\"; };\n", "./dualport.conf:2: stripe.align: \"3k\" is not a power of two" },
	{ "stripe = { align = 64; };\n", "./dualport.conf:1: stripe.align: \"64\" is less than 128" },
	{ "stripe = { align = \"16k\"; };\n",
	  "./dualport.conf:1: stripe.align: split_min (8k) is less than align (16k): "
	  "nothing as short as that can be cut" },
	{ "stripe = { spread_min = \"9k\"; };\n",
	  "./dualport.conf:1: stripe.spread_min: spread_min (9k) is more than split_min (8k)" },
	{ "bond_wait = \"2h\";\n",
	  "./dualport.conf:1: bond_wait: \"2h\": \"h\" is no unit of a time (as 2s, 500ms, 10us)" },
	{ "bond_wait = \"-2s\";\n", "./dualport.conf:1: bond_wait: \"-2s\" is negative" },
	{ "bond_wait = -2;\n", "./dualport.conf:1: bond_wait: \"-2\" is negative" },
	{ "bond_wait = \"0.5s\";\n",
	  "./dualport.conf:1: bond_wait: \"0.5s\": only whole numbers, take a smaller unit" },
	{ "peer = { lease = \"99ms\"; };\n", "./dualport.conf:1: peer.lease: \"99ms\" is less than 100ms" },
	{ "peer = { timeout = \"2000000s\"; };\n",
	  "./dualport.conf:1: peer.timeout: \"2000000s\" is more than 1440min" },
	{ G "stripe = { weights = [ 1, 2, 3 ]; };\n",
	  "./dualport.conf:2: stripe.weights: 3 weights, but the group of a:1 has 2 ports" },
	{ "stripe = { weights = [ 0, 0 ]; };\n",
	  "./dualport.conf:1: stripe.weights: weight 0 is not in 1..65535 (a port "
	  "that is to get nothing does not belong in the group)" },
	{ "stripe = { weights = [ 1, -1 ]; };\n", "./dualport.conf:1: stripe.weights: \"-1\" is negative" },
	{ "stripe = { weights = [ 7 ]; };\n",
	  "./dualport.conf:1: stripe.weights: one weight only: there is one for each port of a group" },
	{ "stripe = { weights = [ ]; };\n", "./dualport.conf:1: stripe.weights: an empty list" },
	{ "stripe = { weights = [ \"1\", \"2\" ]; };\n",
	  "./dualport.conf:1: stripe.weights: a weight is a number, not a string" },
	{ "stripe = { weights = 3; };\n",
	  "./dualport.conf:1: stripe.weights: must be \"equal\", \"rate\" or a list of numbers, not a number" },
	{ "stripe = { weights = \"fast\"; };\n",
	  "./dualport.conf:1: stripe.weights: \"fast\" is none of equal, rate, or a list of numbers" },
	{ "gpus = { };\n",
	  "./dualport.conf:1: gpus: must be a list ( { gpu = 0; ports = [ ... ]; }, ... ), not a group { }" },
	{ "gpus = ( 7 );\n",
	  "./dualport.conf:1: gpus[0]: must be a group { gpu = ...; ports = [ ... ]; }, not a number" },
	{ "gpus = (\n{ gpu = 0; } );\n", "./dualport.conf:2: gpus[0].ports: missing" },
	{ "gpus = ( { gpu = 0; prots = [ ]; } );\n",
	  "./dualport.conf:1: gpus[0].prots: unknown key; an entry of gpus has gpu, ports and rotate" },
	{ "gpus = ( { gpu = [ 0, 1 ]; rotate = 2; ports = [ \"a:1\", \"b:1\" ]; } );\n",
	  "./dualport.conf:1: gpus[0].rotate: must be true or false, not a number" },
	{ "gpus = ( { gpu = 0;\n rotate = true; ports = [ \"a:1\", \"b:1\" ]; } );\n",
	  "./dualport.conf:1: gpus[0].rotate: there is nothing to rotate: it is for a list of GPUs that share these ports" },
	{ "gpus = ( { gpu = [ ]; ports = [ \"a:1\", \"b:1\" ]; } );\n", "./dualport.conf:1: gpus[0].gpu: an empty list" },
	{ "gpus = ( { gpu = ( 3, true ); ports = [ \"a:1\", \"b:1\" ]; } );\n",
	  "./dualport.conf:1: gpus[0].gpu: must be an index or a string, or a list of such, not a boolean" },
	{ "gpus = ( { gpu = [ 3, 4, 3 ]; ports = [ \"a:1\", \"b:1\" ]; } );\n",
	  "./dualport.conf:1: gpus[0].gpu: GPU 3 is in two groups" },
	{ "gpus = ( { gpu = [ 0, 1 ]; rotate = true; ports = [ \"a:1\", \"b:1\" ]; } );\nstripe = { weights = [ 1, 2 ]; };\n",
	  "./dualport.conf:2: stripe.weights: weights by place, and gpus with rotate, which changes the places" },
	{ "gpus = ( { gpu = 0; ports = \"a:1,b:1\"; } );\n", "./dualport.conf:1: gpus[0].ports: must be an array as "
							     "[ \"mlx5_0:1\", \"mlx5_1:1\" ], not a string" },
	{ "gpus = ( { gpu = 0; ports = [ 1, 2 ]; } );\n",
	  "./dualport.conf:1: gpus[0].ports: a port is a string as \"mlx5_0:1\", not a number" },
	{ "gpus = ( { gpu = 0;\n ports = [ \"mlx5_0:x\", \"b:1\" ]; } );\n",
	  "./dualport.conf:2: gpus[0].ports: \"mlx5_0:x\" is not a port (device:number, device:number:gid_index or "
	  "device:number:gid_index:lag_port, as mlx5_0:1 or mlx5_bond_0:1::2)" },
	{ "gpus = ( { ports = [ \"a:1::0\", \"b:1\" ]; } );\n",
	  "./dualport.conf:1: gpus[0].ports: \"a:1::0\": port 0 of a bond is not in 1..255" },
	{ "gpus = ( { ports = [ \"a:1::2\", \"a:1\" ]; } );\n",
	  "./dualport.conf:1: gpus[0].ports: port a:1 is twice in one group" },
	{ "gpus = ( { ports = [ \"a:1::2\", \"a:1:3:2\" ]; } );\n",
	  "./dualport.conf:1: gpus[0].ports: port a:1::2 is twice in one group" },
	{ "gpus = ( { ports = [ \"a:0\", \"b:1\" ]; } );\n",
	  "./dualport.conf:1: gpus[0].ports: \"a:0\": port number 0 is not in 1..255" },
	{ "gpus = ( { ports = [ \"a:1:256\", \"b:1\" ]; } );\n",
	  "./dualport.conf:1: gpus[0].ports: \"a:1:256\": GID index 256 is not in 0..255" },
	{ "gpus = ( { ports = [ \"a:1\", \"b:1\",\n \"a\" ]; } );\n",
	  "./dualport.conf:2: gpus[0].ports: port a:1 is twice in one group" },
	{ "gpus = ( { ports = [ \"a:1\" ]; } );\n",
	  "./dualport.conf:1: gpus[0].ports: only one port (a:1) in a group: a "
	  "group has at least two, and a port in no group is used alone" },
	{ "gpus = ( { ports = [ ]; } );\n", "./dualport.conf:1: gpus[0].ports: no port in a group" },
	{ "gpus = ( { ports = [ " P33 " ]; } );\n",
	  "./dualport.conf:3: gpus[0].ports: more than 32 ports in one group" },
	{ "gpus = ( { gpu = 1; ports = [ \"a:1\", \"b:1\" ]; },\n{ gpu = \"1\"; ports = [ \"c:1\", \"d:1\" ]; } );\n",
	  "./dualport.conf:2: gpus[1].gpu: GPU 1 is in two groups" },
	{ "gpus = ( { gpu = \"9B:00.0\"; ports = [ \"a:1\", \"b:1\" ]; },\n"
	  "{ gpu = \"00000000:9b:00.0\"; ports = [ \"c:1\", \"d:1\" ]; } );\n",
	  "./dualport.conf:2: gpus[1].gpu: GPU 00000000:9b:00.0 is in two groups" },
	{ "gpus = ( { gpu = \"first\"; ports = [ \"a:1\", \"b:1\" ]; } );\n",
	  "./dualport.conf:1: gpus[0].gpu: \"first\" is not a GPU (an index as 0, a PCI address as 0000:9b:00.0, or a "
	  "UUID as GPU-...)" },
	{ "gpus = ( { gpu = -1; ports = [ \"a:1\", \"b:1\" ]; } );\n",
	  "./dualport.conf:1: gpus[0].gpu: \"-1\" is not a GPU "
	  "(an index as 0, a PCI address as 0000:9b:00.0, "
	  "or a UUID as GPU-...)" },
	{ "gpus = ( { gpu = true; ports = [ \"a:1\", \"b:1\" ]; } );\n",
	  "./dualport.conf:1: gpus[0].gpu: must be an index or a string, or a list of such, not a boolean" },
};

static const struct broken_env {
	const char *name, *value, *err;
} broken_envs[] = {
	{ "DUALPORT_ALIGN", "3k", "DUALPORT_ALIGN: \"3k\" is not a power of two" },
	{ "DUALPORT_SPLIT_MIN", "1k",
	  "DUALPORT_SPLIT_MIN: split_min (1k) is less than align (4k): nothing as short as that "
	  "can be cut" },
	{ "DUALPORT_SPLIT_MIN", " 8k", "DUALPORT_SPLIT_MIN: \" 8k\" is not a size (as 4096, 8k, 1m)" },
	{ "DUALPORT_SPREAD_MIN", "9k", "DUALPORT_SPREAD_MIN: spread_min (9k) is more than split_min (8k)" },
	{ "DUALPORT_BOND_WAIT", "2 s",
	  "DUALPORT_BOND_WAIT: \"2 s\": \" s\" is no unit of a time (as 2s, 500ms, 10us)" },
	{ "DUALPORT_ENABLE", "maybe", "DUALPORT_ENABLE: \"maybe\" is neither true nor false" },
	{ "DUALPORT_ORDERING", "s", "DUALPORT_ORDERING: \"s\" is none of rc, strict, signal, relaxed" },
	{ "DUALPORT_DEBUG", "LOUD", "DUALPORT_DEBUG: \"LOUD\" is none of QUIET, WARN, INFO, TRACE" },
	{ "DUALPORT_PEER_PORT", "13579x", "DUALPORT_PEER_PORT: \"13579x\" is not a number" },
	{ "DUALPORT_PEER_PORTS", "60000", "DUALPORT_PEER_PORTS: \"60000\" is more than 1024" },
	{ "DUALPORT_WEIGHTS", "1,", "DUALPORT_WEIGHTS: \"\" is not a weight" },
	{ "DUALPORT_WEIGHTS", "1,70000",
	  "DUALPORT_WEIGHTS: weight 70000 is not in 1..65535 (a port that is to get nothing "
	  "does not belong in the group)" },
	{ "DUALPORT_WEIGHTS", "1,2,3", "DUALPORT_WEIGHTS: 3 weights, but the group of f0:1 has 2 ports" },
	{ "DUALPORT_PORTS", "a:1,b:1;c:1",
	  "DUALPORT_PORTS: only one port (c:1) in a group: a group has at least two, and a "
	  "port in no group is used alone" },
	{ "DUALPORT_PORTS", "a:1,b:1,a:1", "DUALPORT_PORTS: port a:1 is twice in one group" },
	{ "DUALPORT_PORTS", "a:1,,b:1",
	  "DUALPORT_PORTS: \"\" is not a port (device:number, device:number:gid_index or "
	  "device:number:gid_index:lag_port, as mlx5_0:1 or mlx5_bond_0:1::2)" },
	{ "DUALPORT_PORTS", "a:1:2:3:4,b:1",
	  "DUALPORT_PORTS: \"a:1:2:3:4\" is not a port (device:number, device:number:gid_index or "
	  "device:number:gid_index:lag_port, as mlx5_0:1 or mlx5_bond_0:1::2)" },
	{ "DUALPORT_PORTS", "a:1:2:,b:1",
	  "DUALPORT_PORTS: \"a:1:2:\" is not a port (device:number, device:number:gid_index or "
	  "device:number:gid_index:lag_port, as mlx5_0:1 or mlx5_bond_0:1::2)" },
	{ "DUALPORT_GPU", "gpu0",
	  "DUALPORT_GPU: \"gpu0\" is not a GPU (an index as 0, a PCI address as 0000:9b:00.0, or a "
	  "UUID as GPU-...)" },
	{ "DUALPORT_DIAG_JSON", "x%", "DUALPORT_DIAG_JSON: \"x%\": % is followed by neither p nor %" },
};

#endif
