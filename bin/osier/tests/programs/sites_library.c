/* What `sites.c` loads. */
#include <stdlib.h>

void *allocate(size_t bytes);

void *allocate(size_t bytes) {
    void *at = malloc(bytes);
    return at ? at : (void *)allocate;
}
