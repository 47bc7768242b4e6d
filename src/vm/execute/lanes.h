/* Names of the rows of lanes.def, in order. */
#ifndef SM120_VM_LANES_H
#define SM120_VM_LANES_H

#include "vm/machine/program.h"

enum lane {
#define A1(name, ...) LANE_##name,
#define A2(name, ...) LANE_##name,
#define A3(name, ...) LANE_##name,
#define A4(name, ...) LANE_##name,
#define H1(name, ...) LANE_##name,
#define H2(name, ...) LANE_##name,
#define H3(name, ...) LANE_##name,
#define K(name, ...)  LANE_##name,
#define P(name, ...)  LANE_setp_##name,
#include "vm/execute/lanes.def"
    LANE_selp_32,
    LANE_selp_64,
    LANE_COUNT
};

extern handler *const lanes_base[], *const lanes_v3[], *const lanes_v4[];
extern handler *const access_base[], *const access_v3[], *const access_v4[];

/* Rows of the table in access_isa.c. */
enum access {
    ACCESS_LOAD,
    ACCESS_LOAD_STRONG,
    ACCESS_STORE,
    ACCESS_PARAMETER,
    ACCESS_LDMATRIX,
    ACCESS_LDMATRIX_TRANS,
    ACCESS_LDMATRIX_B8,
    ACCESS_LDMATRIX_PACKED,
    ACCESS_STMATRIX,
    ACCESS_STMATRIX_B8,
    ACCESS_FILL,
    ACCESS_COUNT
};

/* Return the tables for the vectors of this CPU (isa.c). */
handler *const *lanes_table(void);
handler *const *access_table(void);

#endif
