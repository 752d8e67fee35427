/* The user as which the server and its workers run. */
#define _GNU_SOURCE
#include "server.h"
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { NOBODY = 65534 };

int leave_root(void) {
    const char *asked = getenv("KERF_REMOTE_UID");
    char *end = NULL;
    const unsigned long id = asked && *asked ? strtoul(asked, &end, 10) : NOBODY;
    if ((end && *end) || id > UINT32_MAX - 1) return fprintf(stderr, "KERF_REMOTE_UID is no user's number\n"), -1;
    if (geteuid() != 0 || id == 0) return 0;
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++)
        if (prctl(PR_CAPBSET_DROP, capability)) return perror("the bounding set"), -1;
    if (setgroups(0, NULL) || setresgid((gid_t)id, (gid_t)id, (gid_t)id) || setresuid((uid_t)id, (uid_t)id, (uid_t)id))
        return perror("KERF_REMOTE_UID"), -1;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return perror("no new privileges"), -1;
    return 0;
}
